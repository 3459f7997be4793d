"""The one configuration of the tiers: typed, with a unit, a default and a sentence for every field."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from .units import Duration, Size

#: Of tokens or uses: more than there are anywhere, and what every program can hold that reads them off the bus.
MOST_COUNT = 2**31 - 1


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
        Meta(description="Whole block devices or partitions, for a server of one rank: blank, or a stripe set's"),
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
    codec: Annotated[
        Literal["none", "zstd"],
        Meta(
            description="How pages are written: zstd codes the exponents of KV of 16 bits, which loses nothing, where "
            "a page takes fewer stripe units so; see `swift-tiers bench codec`. They are read however they were written"
        ),
    ] = "none"
    codec_threads: Annotated[
        int, Meta(ge=1, le=64, description="Threads of each rank that code and decode pages, with or of codec zstd")
    ] = 2
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
        Meta(
            description="Which pages leave first: the longest unused, or the least often used, however long ago: for "
            "what stays popular, as nothing grows old"
        ),
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
        int,
        Meta(
            ge=1, le=MOST_COUNT, description="With ssd_admission = reuse: uses, the first included, that admit a page"
        ),
    ] = 2
    admission_tokens: Annotated[
        int, Meta(ge=0, le=MOST_COUNT, description="With ssd_admission = size: tokens of a prefix that admit its pages")
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
            description="File with the password, readable by its owner alone (of root's: by its group too); "
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
        str | None,
        Meta(
            description="Name of this server on the bus; unset: host name, port and process id, another one at every "
            "start; over several machines the address where they meet"
        ),
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
    min_tokens: Annotated[
        int, Meta(ge=1, le=MOST_COUNT, description="For fewer tokens, that no other tier has, nobody is asked")
    ] = 512
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
            description="File with a secret of up to 64 bytes, readable by its owner alone (of root's: by its group "
            "too): only servers with the same one share pages, and nobody else can tell from names what was asked; "
            "unset: none"
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
            le=MOST_COUNT,
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
            description="Whom a source loads for first. by-age: the oldest; by-need: the request with most "
            "recomputation left, as in CacheFlow"
        ),
    ] = "by-age"
    copy_first: Annotated[
        bool,
        Meta(
            description="While others decode, copy a long prefix from host memory before its forward is launched, so "
            "that they do not wait for it; false: always beside its forward, layer by layer"
        ),
    ] = True


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
