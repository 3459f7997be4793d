"""The one configuration of the tiers: typed, with a unit, a default and a sentence for every field.

Read from JSON or TOML. Every refusal is a `ConfigError` of one line that names the field and the remedy.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from .bounds import donation_bounds
from .errors import ConfigError
from .page import BLOCK_BYTES
from .redis_address import parse_url
from .units import Duration, Size, format_size


class Section(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Base of the configuration's sections."""


class HostConfig(Section, frozen=True):
    """Host memory: a slab of block-major pages in this machine's DRAM."""

    size: Annotated[
        Size | None,
        Meta(description="Memory of the host tier on each machine, for all ranks there; unset: 40 % of what is free"),
    ] = None
    verify: Annotated[
        bool | Literal["auto", "beside"],
        Meta(
            description="Check the checksum of every page on its way from host memory to the device: true, before its "
            'request is admitted, and a damaged page is recomputed; "beside", while it is copied, so that nobody waits '
            "for it (what a GPU had before, by digests of its own), and a damaged page fails its request (503) before "
            'anything was answered; "auto": beside where the device is a GPU, before on a CPU; false: never'
        ),
    ] = "auto"
    codec: Annotated[
        Literal["none", "fp8", "int8", "int4"],
        Meta(
            description="How pages are kept in host memory, and in every tier beneath it; all but none lose something: "
            "see `swift-tiers bench codec`"
        ),
    ] = "none"

    @property
    def lossy_codec(self) -> str:
        """`codec`; empty where pages are kept as they are."""
        return "" if self.codec == "none" else self.codec

    def verifies(self, *, copies_beside: bool) -> bool | Literal["beside"]:
        """What `verify` comes to. `copies_beside`: whether the device has pages copied while it computes, so that
        whoever verifies them first only adds to the wait."""
        if self.verify == "auto":
            return "beside" if copies_beside else True
        return self.verify


class SsdConfig(Section, frozen=True):
    """SSDs: one stripe set over directories or block devices. Off unless one is named."""

    directories: Annotated[
        tuple[str, ...], Meta(description="Directories, one on each SSD, that hold a device file each")
    ] = ()
    devices: Annotated[
        tuple[str, ...],
        Meta(description="Whole block devices or partitions, for a server of one rank; their content is overwritten"),
    ] = ()
    size_per_device: Annotated[
        Size | None,
        Meta(
            description="Size of one new device file, of which every rank has one in every directory; unset: half of "
            "what is free on its file system, by the number of files that are to be made there, at most 256GiB each"
        ),
    ] = None
    stripe_unit: Annotated[
        Size, Meta(description="Bytes that one device serves for one page at a time, a multiple of 4KiB")
    ] = Size(256 * 2**10)
    engine: Annotated[
        Literal["auto", "io_uring", "threads"],
        Meta(description="How the devices are read and written; auto: io_uring where the kernel allows it"),
    ] = "auto"
    gpu_direct: Annotated[
        Literal["auto", "on", "off"],
        Meta(
            description="Read pages straight into GPU memory where host memory is full (GPUDirect Storage, by kvikio); "
            "auto: where that works on this machine; on: also where kvikio copies through host memory"
        ),
    ] = "auto"
    add_beneath: Annotated[
        tuple[str, ...],
        Meta(
            description="Directories beneath which the command add-device may make a device file; unset: anywhere that "
            "the server may write with the embedded Redis, nowhere with bus.url"
        ),
    ] = ()
    throttle: Annotated[
        Size | None,
        Meta(description="Bytes per second that each device is slowed down to, to try slow SSDs; unset: not at all"),
    ] = None


class DeviceConfig(Section, frozen=True):
    """The GPU of each rank, beside SGLang's own pool there."""

    landing: Annotated[
        Size,
        Meta(
            description="Memory of each rank's GPU in which pages arrive straight from other GPUs or SSDs, until they "
            "are where the model reads them; pages beyond it wait until others have left it, or come through host "
            "memory, as all do with 0"
        ),
    ] = Size(256 * 2**20)
    outgoing: Annotated[
        Size,
        Meta(
            description="Memory of each rank's GPU, with peer.borrow, in which pages wait for a donor's GPU to copy "
            "them from there; pages beyond it go to donors through host memory, as all do with 0"
        ),
    ] = Size(64 * 2**20)


class PolicyConfig(Section, frozen=True):
    """What is kept, where, and for how long."""

    eviction: Annotated[
        Literal["lru", "lfu"],
        Meta(description="Which pages leave first: the longest unused, or the least often used"),
    ] = "lru"
    write: Annotated[
        Literal["through", "back"],
        Meta(description="When pages go to ssd: as soon as they are admitted, or when host memory needs their room"),
    ] = "through"
    ssd_admission: Annotated[
        Literal["always", "reuse", "size"],
        Meta(description="Which pages go to ssd: all, those used again, or those of long prefixes"),
    ] = "always"
    admission_uses: Annotated[
        int, Meta(ge=1, description="With ssd_admission = reuse: uses, the first included, that admit a page")
    ] = 2
    admission_tokens: Annotated[
        int, Meta(ge=0, description="With ssd_admission = size: tokens of a prefix that admit its pages")
    ] = 1024
    restore_deadline: Annotated[
        Duration,
        Meta(description="How long a request waits for its pages to come up to host memory; then it is recomputed"),
    ] = Duration(2.0)
    flush_cache: Annotated[
        Literal["device", "host", "all"],
        Meta(description="What SGLang's /flush_cache empties: the device only, the host tier too, or every tier"),
    ] = "host"


class IdentityConfig(Section, frozen=True):
    """How the namespace of the pages is found: pages of other models or weights are never used."""

    weights: Annotated[
        Literal["content", "full"],
        Meta(
            description="Digest of the weights' bytes. content: a file whose content is known, by the hub cache's name "
            "or from an earlier start, is not read again; full: every file is read at every start"
        ),
    ] = "content"


class BusConfig(Section, frozen=True):
    """The bus: a Redis where this server says what it holds and does. Serving never waits for it."""

    enabled: Annotated[bool, Meta(description="Say on a Redis what the tiers hold and do")] = True
    url: Annotated[
        str | None,
        Meta(
            description="redis://HOST:PORT, rediss://HOST:PORT (TLS) or unix:///PATH, without user and password; "
            "unset: an embedded Redis that this user's servers on this machine share"
        ),
    ] = None
    username: Annotated[str | None, Meta(description="User of the Redis ACL; unset: the default user")] = None
    password_file: Annotated[
        str | None,
        Meta(
            description="File with the password, readable by its owner alone; "
            "unset: the environment variable SWIFT_TIERS_BUS_PASSWORD, if there is one"
        ),
    ] = None
    ca_file: Annotated[
        str | None, Meta(description="With rediss://: CA certificates (PEM) to trust beside the system's")
    ] = None
    certificate_file: Annotated[
        str | None, Meta(description="With rediss://: this server's own certificate (PEM), if Redis asks for one")
    ] = None
    key_file: Annotated[
        str | None, Meta(description="The certificate's private key (PEM); unset: it is in certificate_file")
    ] = None
    directory: Annotated[
        str | None,
        Meta(
            description="Where the embedded Redis has its socket, a directory of this user alone; "
            "unset: $XDG_RUNTIME_DIR/swift-tiers, or /tmp/swift-tiers-UID where there is none"
        ),
    ] = None
    prefix: Annotated[str, Meta(description="First part of every key")] = "swift"
    server: Annotated[
        str | None, Meta(description="Name of this server on the bus; unset: host name, port and process id")
    ] = None
    interval: Annotated[Duration, Meta(description="How often the state is published, 100ms to 60s")] = Duration(0.5)
    requests_interval: Annotated[
        Duration, Meta(description='How often the block tables of running requests are sampled, to 60s; "0s": never')
    ] = Duration(1.0)
    events: Annotated[int, Meta(ge=1, le=1_000_000, description="Lines kept in the event stream")] = 10_000
    control: Annotated[bool, Meta(description="Obey the commands in this server's control stream")] = False


class PeerConfig(Section, frozen=True):
    """Memory that servers on one machine lend each other. Off unless `donate` or `borrow` is set; needs the bus."""

    donate: Annotated[
        bool | str,
        Meta(
            description="Lend idle memory of the device pool to other servers: true (all but what peer.window and "
            'peer.keep hold back), or a range of the pool such as "0..60%"; its lower end goes before peer.keep'
        ),
    ] = False
    borrow: Annotated[bool, Meta(description="Keep pages in memory that other servers of this machine lend")] = False
    borrow_limit: Annotated[
        Size | None, Meta(description="The most that each rank borrows, from all donors together; unset: no limit")
    ] = None
    window: Annotated[
        Duration,
        Meta(description="A donor lends what its requests have not needed for so long (t of SwiftCache's Algorithm 1)"),
    ] = Duration(60.0)
    keep: Annotated[
        Duration | None,
        Meta(
            description="A donor keeps a cached prefix for so long after its last use, to 24h, and lends the memory of "
            'others; unset: as long as peer.window; "0s": what no request uses at the moment is idle, cached or not'
        ),
    ] = None
    term: Annotated[Duration, Meta(description="How long a lease lasts without being renewed")] = Duration(2.0)
    recall_bound: Annotated[
        Duration, Meta(description="How soon a borrower gives back what its donor recalls, 10ms to 5s")
    ] = Duration(0.05)
    bandwidth: Annotated[
        Size | None,
        Meta(description="Bytes per second that one borrower moves to and from this donor's memory; unset: no limit"),
    ] = None
    interference: Annotated[
        float,
        Meta(
            gt=0,
            le=1,
            description="The part of a processor core's time that copies from and to this donor's memory may cost "
            "while it computes, all borrowers together; 1: no limit. Has no effect on memory of GPUs",
        ),
    ] = 0.04
    pool_layout: Annotated[
        Literal["layer-major", "block-major"],
        Meta(
            description="How a donor's device pool lies in memory: layer-major is faster to compute with, block-major "
            "(on the CPU platform only) lends and fetches a page in one piece"
        ),
    ] = "layer-major"
    directory: Annotated[
        str | None,
        Meta(
            description="Where donors have their sockets, a directory of this user alone; "
            "unset: where the embedded Redis has its socket, see bus.directory"
        ),
    ] = None


class RemoteConfig(Section, frozen=True):
    """A store that other machines use too, by an engine that SGLang has a driver for. Off unless `engine` is set."""

    engine: Annotated[
        str | None,
        Meta(
            description='Name of the engine, as in --hicache-storage-backend: "mooncake", "nixl" and "file" are '
            "tested, others passed through; unset: no remote tier"
        ),
    ] = None
    options: Annotated[
        dict[str, Any],
        Meta(description="What the engine is to be told, word for word as in --hicache-storage-backend-extra-config"),
    ] = {}
    object: Annotated[
        Size, Meta(description="About how large one stored object is: as many pages of a sequence as fit, up to 64")
    ] = Size(4 * 2**20)
    admission: Annotated[
        Literal["reuse", "size", "always", "never"],
        Meta(
            description="Which pages are written there: those used again (policy.admission_uses), those of long "
            "prefixes (policy.admission_tokens), all, or none, so that it is only read"
        ),
    ] = "reuse"
    min_tokens: Annotated[int, Meta(ge=1, description="For fewer tokens, that no other tier has, nobody is asked")] = (
        512
    )
    lookup_deadline: Annotated[
        Duration, Meta(description="How long a request waits to hear whether pages are there, 1ms to 1s")
    ] = Duration(0.02)
    memory: Annotated[
        Size,
        Meta(description="Memory of each rank through which objects come and go, shared with the engine's process"),
    ] = Size(256 * 2**20)
    share: Annotated[
        Literal["same-hardware", "any-hardware"],
        Meta(
            description="With whom pages are shared that have the same model: with servers on the same kind of device, "
            "whose KV is the same to the last bit, or with all"
        ),
    ] = "same-hardware"
    salt_file: Annotated[
        str | None,
        Meta(
            description="File with a secret of up to 64 bytes, readable by its owner alone: only servers with the same "
            "one share pages, and nobody else can tell from names what was asked; unset: none"
        ),
    ] = None
    throttle: Annotated[
        Size | None,
        Meta(
            description="Bytes per second that this server's ranks each take of the link to the engine, both ways "
            "together; unset: as much as there is"
        ),
    ] = None


class RestoreConfig(Section, frozen=True):
    """How prefixes come back to the device: loaded from below, recomputed, or both at once."""

    strategy: Annotated[
        Literal["auto", "load", "recompute", "token-wise", "layer-wise"],
        Meta(
            description="auto: by what each costs; load: wait for the pages; recompute: load nothing; token-wise: "
            "recompute from the front while loading from the back; layer-wise: recompute the lower layers while "
            "loading the upper ones"
        ),
    ] = "auto"
    chunk: Annotated[
        int,
        Meta(
            ge=1,
            description="Tokens that are recomputed between two looks at what has arrived; more where each forward "
            "costs much, whatever it computes",
        ),
    ] = 512
    profile: Annotated[
        str | None,
        Meta(
            description="The file that `swift-tiers profile` wrote for this model on this machine; unset: the one in "
            "the profile directory, and without one costs are learnt from requests"
        ),
    ] = None
    behind: Annotated[
        float,
        Meta(ge=1, description="A load that takes so many times its estimate is given up, and its pages recomputed"),
    ] = 3.0
    loads: Annotated[
        Literal["by-need", "by-age"],
        Meta(
            description="Whom a source loads for first. by-need: the request with most recomputation left, as in "
            "CacheFlow; by-age: the oldest"
        ),
    ] = "by-need"


class TiersConfig(Section, frozen=True):
    """The whole configuration. With no field set: a host tier sized from free memory, no ssd tier."""

    host: HostConfig = msgspec.field(default_factory=HostConfig)
    ssd: SsdConfig = msgspec.field(default_factory=SsdConfig)
    device: DeviceConfig = msgspec.field(default_factory=DeviceConfig)
    policy: PolicyConfig = msgspec.field(default_factory=PolicyConfig)
    identity: IdentityConfig = msgspec.field(default_factory=IdentityConfig)
    bus: BusConfig = msgspec.field(default_factory=BusConfig)
    peer: PeerConfig = msgspec.field(default_factory=PeerConfig)
    remote: RemoteConfig = msgspec.field(default_factory=RemoteConfig)
    restore: RestoreConfig = msgspec.field(default_factory=RestoreConfig)


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
    _check_bus(config.bus)
    _check_peer(config)
    _check_remote(config.remote)
    return config


def _check_remote(remote: RemoteConfig) -> None:
    if remote.engine is None and remote != RemoteConfig():
        raise ConfigError(
            'remote: has no effect without remote.engine; set it, for example to "mooncake", or remove it'
        )
    if not 0.001 <= remote.lookup_deadline <= 1:
        raise ConfigError(
            f'remote.lookup_deadline: {remote.lookup_deadline} is not between 1ms and 1s; use for example "20ms"'
        )
    if not 64 * 2**10 <= remote.object <= 64 * 2**20:
        raise ConfigError(f'remote.object: {remote.object} is not between 64KiB and 64MiB; use for example "4MiB"')


def _check_peer(config: TiersConfig) -> None:
    peer = config.peer
    donation_bounds(peer.donate)
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
        try:
            text = Path(name).expanduser().read_text()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise ConfigError(f"{name}: cannot be read ({reason}); name a TOML or JSON file after the @") from None
        if name.endswith(".toml"):
            try:
                return tomllib.loads(text)
            except tomllib.TOMLDecodeError as error:
                raise ConfigError(f"{name}: not valid TOML: {error}") from None
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        if source.startswith("@"):
            try:
                return tomllib.loads(text)
            except tomllib.TOMLDecodeError:
                pass
        hint = "" if source.startswith("@") else "; to read a file, put @ before its name"
        raise ConfigError(f"{name}: not valid JSON: {error}{hint}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{name}: must be a JSON object such as {{}}, not {type(content).__name__}")
    return content


def dump_config(config: TiersConfig) -> dict[str, Any]:
    """The configuration as plain dictionaries (sizes in bytes, durations as text); `parse_config` reads it back."""
    result: dict[str, Any] = msgspec.to_builtins(config, enc_hook=_encode)
    return result


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
