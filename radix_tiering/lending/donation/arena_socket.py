"""The unix socket on which arenas change hands, between processes of one user: packets with descriptors."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path
from typing import NamedTuple

from ...base.errors import ConfigError
from ...base.private_directory import LEASE_DIRECTORY, SOCKET_PATH_BYTES
from ..leases.addresses import ARENA, ipc_path
from .arena_messages import MAX_PACKET_BYTES

_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid


class Packet(NamedTuple):
    """What one `receive` brought."""

    data: bytes
    descriptors: tuple[int, ...]  # the receiver's to close
    whole: bool  # False: it was larger than a packet may be, or had more descriptors than were taken

    @property
    def ended(self) -> bool:
        """It is the end of the connection. (Nobody who keeps to the protocol sends an empty packet.)"""
        return not self.data and not self.descriptors


def arena_path(address: str) -> Path:
    """Where the donor with this lease address hands out its arena. Raises ConfigError for what is no address."""
    try:
        path = ipc_path(address).with_suffix(ARENA)
        length = len(os.fsencode(path))
    except ValueError as error:  # of a name that no file can have
        raise ConfigError(f"{LEASE_DIRECTORY}: {address!r} names no socket: {error}") from error
    if length > SOCKET_PATH_BYTES:
        raise ConfigError(f"{LEASE_DIRECTORY}: {path} is too long for a socket; name a shorter one")
    return path


def packet_socket() -> socket.socket:
    """A new socket; does not block."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)


def is_own_user(connection: socket.socket) -> bool:
    """Whether the process at the other end is this user's, by the kernel's word."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(credentials)
    return bool(uid == os.geteuid())


def receive(connection: socket.socket) -> Packet:
    """The next packet. Raises BlockingIOError where there is none, and OSError where the connection is broken."""
    data, descriptors, flags, _ = socket.recv_fds(connection, MAX_PACKET_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
    whole = not flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC)
    return Packet(data, tuple(descriptors), whole)


def send(connection: socket.socket, data: bytes, descriptor: int | None = None) -> None:
    """Send a packet. Raises BlockingIOError where the other side does not take it now, and OSError."""
    if descriptor is None:
        connection.send(data, socket.MSG_NOSIGNAL)
    else:
        socket.send_fds(connection, [data], [descriptor], socket.MSG_NOSIGNAL)


def close_all(descriptors: tuple[int, ...]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
