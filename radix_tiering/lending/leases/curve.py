"""Keys for leases over TCP: CURVE encrypts, and tells each side who the other is."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import NamedTuple

import zmq
import zmq.auth
from zmq.utils import z85

from ...base.errors import ConfigError

_ZAP_ADDRESS = "inproc://zeromq.zap.01"
_DOMAIN = b"swift-lease"


class CurveKeys(NamedTuple):
    """This server's pair of keys, and the public keys of those it talks to; each 40 characters of Z85."""

    public: bytes
    secret: bytes
    peers: frozenset[bytes]


def load_keys(certificate: str | Path, peers: str | Path) -> CurveKeys:
    """Keys from ZeroMQ's certificate files: this server's secret one, and a directory of public ones (`*.key`).

    `zmq.auth.create_certificates` makes them. Raises ConfigError.
    """
    path = Path(certificate).expanduser()
    try:
        mode = os.stat(path).st_mode
        public, secret = zmq.auth.load_certificate(path)
        known = frozenset(zmq.auth.load_certificates(Path(peers).expanduser()))
    except (OSError, ValueError) as error:
        raise ConfigError(f"lease keys: {error}; make them with zmq.auth.create_certificates") from None
    if mode & 0o077:
        mode = stat.S_IMODE(mode)
        raise ConfigError(f"lease keys: {path} is open to others (mode {mode:04o}); run `chmod 600` on it")
    if secret is None:
        raise ConfigError(f"lease keys: {path} has no secret key; name the file that ends in .key_secret")
    return CurveKeys(public, secret, known)


class Gate:
    """Says to ZeroMQ which clients may connect: those whose public key is known, and proven. One for each context."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], keys: CurveKeys) -> None:
        self.socket = context.socket(zmq.REP)
        self.socket.linger = 0
        self.socket.bind(_ZAP_ADDRESS)
        self._keys = keys
        self.refused = 0

    def guard(self, socket: zmq.Socket[bytes]) -> None:
        """Let only known clients connect to this socket, which is not bound yet."""
        socket.zap_domain = _DOMAIN
        socket.curve_server = True
        socket.curve_publickey, socket.curve_secretkey = self._keys.public, self._keys.secret

    def answer(self) -> None:
        """Answer the question that waits (ZeroMQ's RFC 27). The key becomes the `User-Id` of all that client sends."""
        frames = self.socket.recv_multipart(zmq.NOBLOCK)
        version, number, domain, mechanism = frames[0], frames[1], frames[2], frames[5]
        key = z85.encode(frames[6]) if mechanism == b"CURVE" and len(frames) > 6 else b""
        known = domain == _DOMAIN and key in self._keys.peers
        self.refused += not known
        status = (b"200", b"OK", key) if known else (b"400", b"unknown key", b"")
        self.socket.send_multipart([version, number, *status, b""])
