"""The configuration as users write it and read it: JSON or TOML, checked, and explained field by field.

Every refusal is a `ConfigError` of one line that names the field and the remedy.
"""

from __future__ import annotations

import json
import os
import re
import stat
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import msgspec

from .bounds import donation_bounds
from .config import BusConfig, RemoteConfig, Section, SsdConfig, TiersConfig
from .errors import ConfigError
from .page import BLOCK_BYTES
from .redis_address import parse_url
from .units import Duration, Size, format_size

#: How it is found out what a file is written in.
_KINDS = "a file is read as TOML if its name ends with .toml, otherwise as JSON or TOML, whichever it is"
#: Of a file with a configuration, far more than any has.
_MOST_FILE_BYTES = 16 << 20
#: Fields that have no effect unless another one of their section is set.
_OF_SSD = tuple(name for name in SsdConfig.__struct_fields__ if name not in ("directories", "devices"))
_OF_PEERS = ("term", "recall_bound", "directory")
_OF_DONORS = ("window", "keep", "bandwidth", "interference", "pool_layout")
_OF_BORROWERS = ("borrow_limit",)


def _decode(kind: type, value: object) -> object:
    if kind is Size or kind is Duration:
        return kind.parse(value)
    raise TypeError(f"no decoder for {kind}")


def _encode(value: object) -> object:
    if isinstance(value, Size):
        return int(value)
    if isinstance(value, Duration):
        return str(value)
    raise TypeError(f"no encoder for {type(value)}")


def parse_config(content: dict[str, Any]) -> TiersConfig:
    """A configuration from nested dictionaries, checked for everything that needs no look at the machine.

    Raises ConfigError.
    """
    identity = content.get("identity")
    if isinstance(identity, dict) and identity.get("weights") == "sampled":
        raise ConfigError(
            'identity.weights: "sampled" is no longer offered, since it missed changed bits; use "content", which '
            "reads each file once, or remove the field"
        )
    try:
        config = msgspec.convert(content, TiersConfig, dec_hook=_decode)
    except msgspec.ValidationError as error:
        raise ConfigError(_explain_validation(str(error), content)) from None
    unit = config.ssd.stripe_unit
    if unit < BLOCK_BYTES or unit % BLOCK_BYTES:
        raise ConfigError(f'ssd.stripe_unit: {unit} is not a multiple of 4KiB; use for example "256KiB"')
    if unit > 64 * 2**20:
        raise ConfigError(f'ssd.stripe_unit: {unit} is more than 64MiB; use for example "256KiB" or "1MiB"')
    if config.policy.restore_deadline <= 0:
        raise ConfigError('policy.restore_deadline: must be above zero; use for example "2s"')
    for name, rate in (("ssd", config.ssd.throttle), ("remote", config.remote.throttle)):
        if rate is not None and rate < 2**20:
            raise ConfigError(
                f'{name}.throttle: below 1MiB per second is unusable; use for example "200MiB", or remove it'
            )
    _check_ssd(config)
    _check_bus(config.bus)
    _check_peer(config)
    _check_remote(config.remote)
    return config


def _refuse_void(section: str, fields: Section, names: Iterable[str], needed: str) -> None:
    """Raise ConfigError for a field that was set though it has no effect; `needed`: what would give it one."""
    defaults = type(fields)()
    for name in names:
        if getattr(fields, name) != getattr(defaults, name):
            raise ConfigError(f"{section}.{name}: has no effect without {needed}; set that, or remove it")


def _check_directory(field: str, name: str) -> None:
    """Raise ConfigError for one that would be another in a process that works elsewhere."""
    if not os.path.isabs(name):
        raise ConfigError(f"{field}: {name!r} is not an absolute path; write it from / on")


def _check_ssd(config: TiersConfig) -> None:
    ssd = config.ssd
    if not ssd.directories and not ssd.devices:
        _refuse_void("ssd", ssd, _OF_SSD, "ssd.directories or ssd.devices")
    for field in ("directories", "devices", "add_beneath"):
        for index, name in enumerate(getattr(ssd, field)):
            _check_directory(f"ssd.{field}[{index}]", name)
    if ssd.codec != "none" and config.host.codec != "none":
        raise ConfigError(
            f"ssd.codec: pages in {config.host.codec} (host.codec) have no exponents of 16 bits for {ssd.codec} to "
            "code; use one of the two"
        )
    if ssd.gpu_direct == "on" and not config.device.landing:
        raise ConfigError(
            'ssd.gpu_direct: there is no memory of the GPU to read to with device.landing 0; use for example "256MiB" '
            "there, or remove ssd.gpu_direct"
        )


def _check_remote(remote: RemoteConfig) -> None:
    if remote.engine is None and remote != RemoteConfig():
        raise ConfigError(
            'remote: has no effect without remote.engine; set it, for example to "mooncake", or remove it'
        )
    name = remote.engine
    if name is not None and not name.strip():
        raise ConfigError('remote.engine: names no engine; set it, for example to "mooncake", or remove it')
    if name is not None and name != name.strip():
        raise ConfigError(f'remote.engine: {name!r} has spaces around it; use "{name.strip()}"')
    if not 0.001 <= remote.lookup_deadline <= 1:
        raise ConfigError(
            f'remote.lookup_deadline: {remote.lookup_deadline} is not between 1ms and 1s; use for example "20ms"'
        )
    if not 64 * 2**10 <= remote.object <= 64 * 2**20:
        raise ConfigError(f'remote.object: {remote.object} is not between 64KiB and 64MiB; use for example "4MiB"')


def _check_peer(config: TiersConfig) -> None:
    peer = config.peer
    donation_bounds(peer.donate)
    if not peer.donate and not peer.borrow:
        _refuse_void("peer", peer, _OF_PEERS, "peer.donate or peer.borrow")
    if not peer.donate:
        _refuse_void("peer", peer, _OF_DONORS, "peer.donate")
    if not peer.borrow:
        _refuse_void("peer", peer, _OF_BORROWERS, "peer.borrow")
    if peer.borrow_limit is not None and peer.borrow_limit < 2**20:
        raise ConfigError(
            f"peer.borrow_limit: with {peer.borrow_limit}, less than 1MiB, nothing is borrowed; write the unit, for "
            'example "16GiB", or remove it'
        )
    if peer.directory is not None:
        _check_directory("peer.directory", os.path.expanduser(peer.directory))
    if (peer.borrow or peer.donate) and not config.bus.enabled:
        raise ConfigError("peer: servers find each other through the bus; set bus.enabled = true, or remove peer")
    if not 0.01 <= peer.recall_bound <= 5:
        raise ConfigError(f'peer.recall_bound: {peer.recall_bound} is not between 10ms and 5s; use for example "50ms"')
    if not 4 * peer.recall_bound <= peer.term <= 60:
        raise ConfigError(
            f"peer.term: {peer.term} is not between four times peer.recall_bound ({peer.recall_bound}) and 60s; "
            'use for example "2s"'
        )
    if not 0 < peer.window <= 3600:
        raise ConfigError(f'peer.window: {peer.window} is not above zero and up to 1h; use for example "60s"')
    if peer.keep is not None and peer.keep > 86_400:
        raise ConfigError(f'peer.keep: {peer.keep!s} is above 24h; use for example "10min", or remove it')
    if peer.bandwidth is not None and peer.bandwidth < 2**20:
        raise ConfigError('peer.bandwidth: below 1MiB per second is unusable; use for example "2GiB", or remove it')


def _check_bus(bus: BusConfig) -> None:
    if bus.control and not bus.enabled:
        raise ConfigError("bus.control: has no effect without the bus; set bus.enabled = true, or remove it")
    address = None if bus.url is None else parse_url(bus.url)
    for name in ("username", "password_file", "ca_file", "certificate_file", "key_file"):
        if getattr(bus, name) is not None and address is None:
            raise ConfigError(f"bus.{name}: has no effect on the embedded Redis; set bus.url, or remove it")
    for name in ("ca_file", "certificate_file", "key_file"):
        if getattr(bus, name) is not None and address is not None and not address.tls:
            raise ConfigError(
                f"bus.{name}: has no effect without TLS; use a rediss:// address in bus.url, or remove it"
            )
    if bus.key_file is not None and bus.certificate_file is None:
        raise ConfigError("bus.key_file: has no effect without a certificate; set bus.certificate_file, or remove it")
    if bus.directory is not None and address is not None:
        raise ConfigError("bus.directory: has no effect with bus.url; remove one of the two")
    if bus.directory is not None:
        _check_directory("bus.directory", os.path.expanduser(bus.directory))
    # No character that patterns, `redis-cli` or CLIENT SETNAME treat in a way of their own. A server's name is one word
    # of a key, and colons part these.
    for name, value, marks in (("prefix", bus.prefix, ". _ : -"), ("server", bus.server, ". _ -")):
        allowed = re.escape(marks.replace(" ", ""))
        if value is not None and not re.fullmatch(f"[A-Za-z0-9{allowed}]{{1,128}}", value):
            raise ConfigError(
                f"bus.{name}: {value!r} cannot be in a key; use 1 to 128 letters, digits and any of {marks}"
            )
    if not 0.1 <= bus.interval <= 60:
        raise ConfigError(f'bus.interval: {bus.interval} is not between 100ms and 60s; use for example "500ms"')
    if bus.requests_interval and not 0.1 <= bus.requests_interval <= 60:
        raise ConfigError(
            f"bus.requests_interval: {bus.requests_interval} is not between 100ms and 60s; "
            'use for example "1s", or "0s" for never'
        )


def load_config(source: str | dict[str, Any] | None) -> TiersConfig:
    """A configuration from what a user gives: a dictionary, JSON text, or `@FILE` with TOML or JSON.

    Raises ConfigError.
    """
    return parse_config(read_source(source))


def read_source(source: str | dict[str, Any] | None) -> dict[str, Any]:
    """The dictionary behind what a user gives: a dictionary, JSON text, `@FILE` (TOML or JSON), or nothing."""
    if source is None or source == "":
        return {}
    if isinstance(source, dict):
        return source
    text, name = source, "--swift-tiers-config"
    if source.startswith("@"):
        name = source[1:]
        text = _read_file(name)
        if name.endswith(".toml"):
            try:
                return tomllib.loads(text)
            except RecursionError:
                raise ConfigError(f"{name}: is nested too deeply to be a configuration") from None
            except ValueError as error:
                raise ConfigError(f"{name}: not valid TOML: {error}; {_KINDS}") from None
    names = _EachOnce()
    try:
        content = json.loads(text, object_pairs_hook=names)
        names.check(name, content)
    except RecursionError:
        raise ConfigError(f"{name}: is nested too deeply to be a configuration") from None
    except ValueError as error:
        if source.startswith("@"):
            try:
                return tomllib.loads(text)
            except (ValueError, RecursionError):
                pass
        hint = _KINDS if source.startswith("@") else "to read a file, put @ before its name"
        raise ConfigError(f"{name}: not valid JSON: {error}; {hint}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{name}: must be a JSON object such as {{}}, not {type(content).__name__}")
    return content


def _read_file(name: str) -> str:
    """What is in a file that a user names. Raises ConfigError."""
    try:
        path = Path(name).expanduser()
        kind = path.stat().st_mode
        if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):  # a pipe would be waited for, /dev/zero read for ever
            raise ValueError("it is no file")
        with path.open("rb") as file:
            content = file.read(_MOST_FILE_BYTES + 1)
        if len(content) > _MOST_FILE_BYTES:
            raise ValueError(f"it has more than {format_size(_MOST_FILE_BYTES)}")
        # Some editors begin a file with a mark that says it is UTF-8.
        return content.decode("utf-8-sig")
    except (OSError, ValueError, RuntimeError) as error:  # also a home directory that there is none
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{name}: cannot be read ({reason}); name a TOML or JSON file after the @") from None


class _EachOnce:
    """Makes the objects of a JSON text, and remembers those with a name that is there twice: the last value of it would
    silently count."""

    def __init__(self) -> None:
        self._wrong: tuple[dict[str, Any], str] | None = None  # the last one

    def __call__(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        content = dict(pairs)
        if len(content) < len(pairs):
            names = Counter(name for name, _ in pairs)
            self._wrong = content, next(name for name, count in names.items() if count > 1)
        return content

    def check(self, source: str, content: object) -> None:
        """Raises ConfigError, which names the source and the field with its section."""
        if self._wrong is not None:
            # An object may itself be lost behind another one of its name; not the last, as objects come inside out.
            wrong, name = self._wrong
            raise ConfigError(f"{source}: {_place_of(wrong, content)}{name} is there twice; keep one")


def _place_of(wanted: dict[str, Any], content: object, place: str = "") -> str | None:
    """Where the object itself lies in `content`: `section.`, or nothing for all of it."""
    if content is wanted:
        return place
    parts = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    found = (_place_of(wanted, part, f"{place}{name}.") for name, part in parts)
    return next((one for one in found if one is not None), None)


def dump_config(config: TiersConfig) -> dict[str, Any]:
    """The configuration as plain dictionaries (sizes in bytes, durations as text); `parse_config` reads it back."""
    result: dict[str, Any] = msgspec.to_builtins(config, enc_hook=_encode)
    return result


def shown_config(config: TiersConfig) -> dict[str, Any]:
    """The configuration for everybody to read: as of `dump_config`, but of `remote.options`, which may hold an engine's
    secrets, only what they are called."""
    shown = dump_config(config)
    shown["remote"]["options"] = dict.fromkeys(shown["remote"]["options"], "...")
    return shown


class FieldText(NamedTuple):
    """One line of `swift-tiers config --explain`."""

    section: str
    name: str
    kind: str
    default: str
    description: str


def explain() -> Iterator[FieldText]:
    """Every field of the configuration with its type, default and sentence."""
    for section_name in TiersConfig.__struct_fields__:
        section = type(getattr(TiersConfig(), section_name))
        defaults = section()
        for name, hint in get_type_hints(section, include_extras=True).items():
            kind, meta = get_args(hint)
            value = getattr(defaults, name)
            yield FieldText(section_name, name, _kind_text(kind), _default_text(value), str(meta.description))


def _kind_text(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " | ".join(f'"{choice}"' for choice in get_args(kind))
    if get_origin(kind) is tuple:
        return "list of paths"
    if get_origin(kind) is dict:
        return "table"
    names = {
        Size: 'size ("8GiB")', Duration: 'duration ("250ms")', bool: "true | false", int: "integer", float: "number",
        str: "text",
    }  # fmt: skip
    options = [option for option in get_args(kind) if option is not type(None)] or [kind]
    return " | ".join(names.get(option) or _kind_text(option) for option in options)


def _default_text(value: object) -> str:
    if value is None:
        return "unset"
    if isinstance(value, Duration):
        return f'"{value}"'
    if isinstance(value, Size):
        return f'"{format_size(value)}"'
    return json.dumps(value)


def _explain_validation(message: str, content: dict[str, Any]) -> str:
    """msgspec's message as `section.field: what is wrong; what to do`."""
    text, _, where = message.partition(" - at `$")
    path = where.rstrip("`").lstrip(".")
    if "unknown field" in text:
        name = text.split("`")[1]
        known = _known_fields(path)
        return f"{path + '.' if path else ''}{name}: unknown field; known here: {', '.join(known)}"
    field = path or "configuration"
    if "invalid enum value" in text.lower():
        kinds = {f"{line.section}.{line.name}": line.kind for line in explain()}
        return f"{field}: {text.split(chr(39))[1]!r} is not one of {kinds[field]}; use one of these"
    return f"{field}: {text[0].lower() + text[1:]}; see `swift-tiers config --explain`"


def _known_fields(path: str) -> tuple[str, ...]:
    if not path:
        return TiersConfig.__struct_fields__
    section = getattr(TiersConfig(), path.split(".", maxsplit=1)[0], None)
    return section.__struct_fields__ if isinstance(section, Section) else ()
