"""The bus's contract: every key that is written, as one table. `docs/bus.md` shows it; a test holds both together.

Names are `PREFIX:SERVER:RANK:WHAT`. A server's name holds no colon, a rank's name is `dp0-tp0`. Numbers are decimal
text. Units are in the fields' names: `_bytes`, `_seconds`, `_tokens`, `_pages`; a field without one is a plain count.
A `time` is in seconds since 1970 by the writer's clock; `clock_offset_seconds` says how far that clock is off
Redis' own. A counter grows from the start of its server and never shrinks: a smaller value means a new server. What is
not known, or does not apply, is an empty field.

No key holds token ids, text of prompts or answers, cache salts, or secrets.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

#: Changes when a reader that knows the former contract would misread this one.
SCHEMA_VERSION = 1

#: How long state outlives its last writing, in publishing intervals, and at least in seconds.
STATE_TTL_INTERVALS, STATE_TTL_LOWEST = 4, 5.0
#: How long a server that is gone is remembered, with its streams, seconds.
SERVER_TTL = 3600.0
#: How long a request is kept after its end, seconds, and how many ended ones per rank.
ENDED_REQUEST_TTL, ENDED_REQUESTS = 300.0, 256
#: How long an answer to a question is kept, seconds.
ANSWER_TTL = 60.0
#: Tiers that a map can be asked of.
TIERS = ("device", "peer", "host", "ssd")
#: How long the text of a map gets at most, bytes; and what an answer lists at most: pages of a sequence, nodes.
MOST_MAP_BYTES, MOST_LISTED_PAGES, MOST_LISTED_NODES = 262_144, 4096, 1000
#: How long the outcome of a command is kept, seconds.
COMMAND_TTL = 3600.0
#: How many a rank names at most: others that it lends to, or borrows from; leases with each; links of single donors;
#: GPUs that its own reaches.
MOST_PARTNERS, MOST_LISTED_LEASES, MOST_DONOR_LINKS, MOST_REACHES = 64, 128, 128, 64


class Kind(Enum):
    """Redis types that are used."""

    STRING = "string"
    HASH = "hash"
    SORTED_SET = "sorted set"
    STREAM = "stream"


class Field(NamedTuple):
    """A field of a hash or of a stream entry; `NAME*` stands for several that begin so."""

    name: str
    meaning: str


class KeySpec(NamedTuple):
    """One row of the table."""

    name: str  # how the code calls it
    pattern: str  # after the prefix; words in capitals are variable
    kind: Kind
    fields: tuple[Field, ...]  # of a string: one, of the value; of a sorted set: two, member and score
    ttl: str  # for people
    writer: str
    reader: str
    meaning: str


_STATE = "max(5 s, 4 intervals)"
_STREAM = "1 h after its server's end"
_RANK = "every rank, each interval"
_EVERYONE = "everyone"

_LEASES = (
    Field("time", "when this was true"),
    Field("epoch", "of the donor: a number that it drew at random when it began; no lease outlives it"),
    Field("leases", "that have not ended"),
    Field("bytes", "of all of them"),
    Field("recalled_bytes", "of those that are to be returned, or are being returned"),
    Field("pinned_bytes", "of those that the donor recalls last; empty at the borrower, which does not know"),
    Field("shortest_seconds", "until the first one that can be used ends unless it is renewed; empty if none can"),
    Field("listed", f"how many of them are in `table`: at most {MOST_LISTED_LEASES}, the first by number"),
    Field("table", "`NUMBER:BYTES:STATE:SECONDS ...`, with `:pinned` at its end where it is; see docs/leases.md"),
)


def _recent(what: str, meaning: str) -> tuple[Field, ...]:
    """How long things took within the last minute. A percentile since the start would hide today's fault for days."""
    return (
        Field(f"recent_{what}", f"{meaning}, that ended within the last 60 s"),
        Field("recent_p50_seconds", "the median of what one of these took; to within a factor of two; empty if none"),
        Field("recent_p99_seconds", "the 99th percentile, likewise; 8.4 for all above"),
    )


_TIER_COUNTERS = (
    Field("time", "when this was true"),
    Field("capacity_bytes", "what the tier can hold"),
    Field("used_bytes", "what it holds, padding included"),
    Field("pages", "pages it holds"),
    Field("pinned_pages", "pages held for a request or by an operator: not evicted"),
    Field("limit_bytes", "a cap set by an operator, or the capacity"),
    Field("hits", "pages that requests got from it"),
    Field("misses", "pages that requests asked for and it did not have"),
    Field("bytes_read", "left it upwards"),
    Field("bytes_written", "entered it"),
    Field("evictions", "pages dropped or demoted to make room"),
    Field("checksum_failures", "pages found damaged: dropped, never served"),
    Field("refused:*", "pages not taken in, by reason"),
    Field("restores", "restores that read from it"),
    Field("restore_seconds", "their durations, summed"),
    *_recent("restores", "restores that read from it"),
)


def _nvlink_fields(where: str) -> tuple[Field, ...]:
    return (
        Field("nvlink_sent_bytes", f"{where}; by everybody, since this server began to look"),
        Field("nvlink_received_bytes", "likewise"),
        Field("nvlink_sent_bytes_per_second", "since the look before; empty in the first, and after a gap"),
        Field("nvlink_received_bytes_per_second", "likewise"),
    )


#: Ways between tiers; those to and from memory of other servers are there for each donor, too.
LINKS = (
    "device-host", "host-device", "host-ssd", "ssd-host", "ssd-device", "peer-host", "host-peer", "peer-device",
)  # fmt: skip

KEYS: tuple[KeySpec, ...] = (
    KeySpec(
        "schema", "schema", Kind.STRING, (Field("value", f"{SCHEMA_VERSION}"),), "none", "every server", _EVERYONE,
        "version of this contract; a reader that knows another one must stop",
    ),
    KeySpec(
        "servers", "servers", Kind.SORTED_SET,
        (Field("member", "name of a server"), Field("score", "its last heartbeat, seconds since 1970 by Redis' clock")),
        "none; members older than 1 h are removed", "every server, each interval", _EVERYONE,
        "who is or was there; alive are those whose `info` exists",
    ),
    KeySpec(
        "info", "SERVER:info", Kind.HASH,
        (
            Field("time", "heartbeat"),
            Field("host", "host name"),
            Field("address", "host:port of its HTTP endpoint"),
            Field("pid", "process of rank dp0-tp0"),
            Field("started", "time"),
            Field("version", "of swift-tiers"),
            Field("sglang_version", "of SGLang"),
            Field("model", "path or name of the model"),
            Field("ranks", "names of the ranks on this Redis, joined by commas"),
            Field("interval_seconds", "between two publishings"),
            Field("clock_offset_seconds", "its clock minus Redis' clock"),
            Field("control", "1 if it obeys commands, 0 if not"),
            Field("configuration", "JSON of the effective configuration, without secrets"),
        ),
        _STATE, "rank dp0-tp0, each interval", _EVERYONE, "one server",
    ),
    KeySpec(
        "rank", "SERVER:RANK:rank", Kind.HASH,
        (
            Field("time", "heartbeat"),
            Field("pid", "process"),
            Field("namespace", "hex digest that scopes page keys: model, weights, dtype, layout, rank"),
            Field("page_tokens", "tokens of a page"),
            Field("page_bytes", "bytes of a page"),
            Field("io_engine", "how the ssd tier reads and writes; empty without one"),
            Field("write_queue_pages", "admitted to ssd and not yet written"),
            Field("landing_pages", "that landing memory on the GPU holds at most; 0 without any"),
            Field("landing_used_pages", "of these, in use or reserved"),
            Field("running_requests", "being computed"),
            Field("waiting_requests", "not yet admitted"),
            Field("restores_started", "requests that waited for pages from below the device"),
            Field("restores_completed", "every page that was found came up in time"),
            Field("restores_split", "a part was computed while the rest came up"),
            Field("restores_cut_short", "some pages did not come up: damaged, lost, or no room"),
            Field("restores_expired", "the deadline passed; the rest was recomputed"),
            Field("restores_cancelled", "the request ended first"),
            Field("restores_late", "fell behind their estimates: what had not come was computed; see `restore.behind`"),
            Field("lost_pages", "pages that were found and did not come, by all restores; see `restore.pages_lost`"),
            Field("failed_loads", "copies to the device that failed: SGLang answered 503"),
            Field("events", "sequence number of the newest event of this rank"),
            Field("events_lost", "events that were dropped before they could be published"),
            Field("publishes", "times that state was published"),
            Field("publish_failures", "times that it could not be"),
            Field("publish_seconds", "what the last publishing took, waiting for Redis included"),
            Field("publish_cpu_seconds", "what publishing took of the CPU, summed"),
            Field("questions", "answered"),
            Field("questions_ignored", "entries of `questions` that it did not understand"),
            Field("sample_seconds", "what sampling requests and tree took the scheduler's thread, summed"),
            Field("links", "names of the keys `link:FROM-TO` that there are, joined by commas"),
            Field("lease_address", "where borrowers find it; empty if it lends nothing"),
            Field("lease_scope", "machine and user that the address is for: `HOST/BOOT/UID`; empty without one"),
            Field("lent_bytes", "of its memory, to others; empty if it neither lends nor borrows"),
            Field("lendable_bytes", "at others' disposal, and not lent"),
            Field("lend_limit_bytes", "the most that is lent, set by an operator; empty without such a limit"),
            Field("lend_window_seconds", "over which its own demand counts; empty if it does not lend"),
            Field("lend_peak_bytes", "that its own requests needed at most at one time, within that window"),
            Field("lends_to", f"names of the keys `lent:BORROWER`, joined by commas; at most {MOST_PARTNERS}"),
            Field("borrowed_bytes", "of others' memory"),
            Field("borrows_from", "names of the keys `borrowed:DONOR`, likewise"),
        ),
        _STATE, _RANK, _EVERYONE, "one rank of a server: a scheduler process with a tier stack of its own",
    ),
    KeySpec(
        "tier", "SERVER:RANK:tier:TIER", Kind.HASH, _TIER_COUNTERS, _STATE, _RANK, _EVERYONE,
        "one tier: `device`, `peer`, `host`, `ssd`",
    ),
    KeySpec(
        "stripe", "SERVER:RANK:stripe", Kind.HASH,
        (
            Field("time", "when this was true"),
            Field("set", "hex id of the stripe set"),
            Field("unit_bytes", "of a stripe unit"),
            Field("devices", "in the set"),
            Field("missing", "members that were not found on opening"),
            Field("capacity_units", "of the devices in service"),
            Field("free_units", "that can be written now"),
            Field("queued", "transfers accepted and not yet answered"),
            Field("reads:*", "reads by outcome: `ok`, `corrupt: checksum`, ..."),
        ),
        _STATE, "ranks with an ssd tier, each interval", _EVERYONE, "the stripe set beneath the ssd tier",
    ),
    KeySpec(
        "ssd", "SERVER:RANK:ssd:NUMBER", Kind.HASH,
        (
            Field("time", "when this was true"),
            Field("path", "device file or block device"),
            Field("service", "`in service`, `draining` or `out`"),
            Field("reason", "why it is not in service; empty if it is"),
            Field("capacity_bytes", "of its slots"),
            Field("used_bytes", "reserved or holding pages"),
            Field("bytes_read", ""),
            Field("bytes_written", ""),
            Field("reads", "requests"),
            Field("writes", "requests"),
            Field("read_errors", ""),
            Field("write_errors", ""),
            Field("corrupt_units", "stripe units that were not what was written"),
            Field("in_flight", "requests under way"),
            *_recent("requests", "requests, reads and writes together"),
        ),
        _STATE, "ranks with an ssd tier, each interval", _EVERYONE, "one device of the stripe set",
    ),
    KeySpec(
        "link", "SERVER:RANK:link:FROM-TO", Kind.HASH,
        (
            Field("time", "when this was true"),
            Field("transfers", "copies, each of one or more pages"),
            Field("pages", ""),
            Field("bytes", ""),
            Field("seconds", "spent copying, summed; copies side by side count each"),
            *_recent("transfers", "copies"),
            Field("bytes_per_second", "copied since the publishing before this one; empty in the first"),
        ),
        _STATE, _RANK, _EVERYONE,
        "one way between tiers: `device-host`, `host-device`, `host-ssd`, `ssd-host`, `ssd-device`, `peer-host`, "
        "`host-peer`, `peer-device`; and of these last, `DONOR-host`, `host-DONOR` and `DONOR-device` for each donor, "
        "counted since it was met",
    ),
    KeySpec(
        "gpu", "SERVER:RANK:gpu", Kind.HASH,
        (
            Field("time", "when NVML was asked: every 2 s"),
            Field("index", "its number at NVML and `nvidia-smi`, whatever CUDA_VISIBLE_DEVICES says"),
            Field("uuid", "`GPU-…`, or `MIG-…` of an instance of a divided one"),
            Field("name", ""),
            Field("pci", "its address, `0000:1b:00.0`"),
            Field("trouble", "why nothing else is known: it is lost, or its driver is; empty if it answers"),
            Field("mig", "1 if it is divided with MIG, or is an instance; empty where NVML does not say"),
            Field("memory_total_bytes", ""),
            Field("memory_used_bytes", "by all processes, what the driver keeps included"),
            Field("memory_free_bytes", ""),
            Field("busy_share", "of the last moments in which a kernel ran, 0 to 1"),
            Field("nvlinks", "that are up; empty where it has none, or NVML does not say"),
            *_nvlink_fields("over all of them"),
            Field("pcie_sent_bytes_per_second", "to host memory and elsewhere, in 20 ms just before `time`: a sample"),
            Field("pcie_received_bytes_per_second", "from there, likewise"),
            Field("reaches", f"names of the keys `reach:GPU`, joined by commas; at most {MOST_REACHES}"),
        ),
        _STATE, "ranks on an NVIDIA GPU, each interval", _EVERYONE,
        "the GPU of one rank, as NVML sees it; what NVML does not support is empty",
    ),
    KeySpec(
        "reach", "SERVER:RANK:reach:GPU", Kind.HASH,
        (
            Field("time", "when NVML was asked"),
            Field("name", "of the other GPU"),
            Field("nvlinks", "that are up between both; 0 if there is none"),
            Field("switched", "1 if they go over NVSwitches, which are everybody's"),
            Field(
                "pcie",
                "what both are below: `same board`, `single switch`, `multiple switches`, `host bridge`, `node`, "
                "`system`",
            ),
            Field("read", "whether each can read the other's memory by itself: `ok`, or why not"),
            Field("write", "whether it can write there, likewise"),
            Field("nvlink", "whether it can over NVLink, likewise"),
            *_nvlink_fields("to and from this GPU alone; empty over NVSwitches"),
        ),
        _STATE, "ranks on an NVIDIA GPU, each interval", _EVERYONE,
        "how the GPU of one rank reaches another GPU of the machine, by its uuid",
    ),
    KeySpec(
        "lent", "SERVER:RANK:lent:BORROWER", Kind.HASH, _LEASES, _STATE, "ranks that lend, each interval", _EVERYONE,
        "what this rank lends to one borrower (`SERVER.RANK`), as the donor knows it",
    ),
    KeySpec(
        "borrowed", "SERVER:RANK:borrowed:DONOR", Kind.HASH, _LEASES, _STATE, "ranks that borrow, each interval",
        _EVERYONE, "what this rank borrows from one donor (`SERVER.RANK`), as the borrower knows it",
    ),
    KeySpec(
        "tree", "SERVER:RANK:tree", Kind.HASH,
        (
            Field("time", "when this was sampled"),
            Field("nodes", "of SGLang's radix tree"),
            Field("leaves", ""),
            Field("depth", "nodes on the longest path"),
            Field("deepest_tokens", "tokens on the longest path"),
            Field("cached_tokens", "held by the tree"),
            Field("evictable_tokens", ""),
            Field("protected_tokens", "in use by requests"),
            Field("reused_tokens", "prompt tokens found in the tree, summed"),
            Field("prompt_tokens", "prompt tokens of all admitted requests, summed"),
            Field("evicted_tokens", "that left the device"),
            Field("complete", "0 if the tree was too large to walk: nodes, leaves and depths are of a part"),
        ),
        _STATE, "every rank, each sampling", _EVERYONE, "SGLang's radix tree on the device",
    ),
    KeySpec(
        "directory", "SERVER:RANK:directory", Kind.HASH,
        (
            Field("time", "when this was true"),
            Field("pages", "known below the device, each once"),
            Field("host_only_pages", ""),
            Field("ssd_only_pages", ""),
            Field("peer_only_pages", ""),
            Field("both_pages", "with copies in two tiers or more"),
            Field("deepest_pages", "pages before and with the deepest one"),
            Field("first_pages", "beginnings of sequences"),
            Field("foreign_pages", "of other namespaces: other weights, other models"),
        ),
        _STATE, _RANK, _EVERYONE, "summary of the directory of pages below the device",
    ),
    KeySpec(
        "requests", "SERVER:RANK:requests", Kind.SORTED_SET,
        (Field("member", "request id"), Field("score", "time of its arrival")),
        _STATE, "every rank, each sampling", _EVERYONE,
        "requests that are there now, and those that ended lately",
    ),
    KeySpec(
        "request", "SERVER:RANK:request:RID", Kind.HASH,
        (
            Field("time", "when this was sampled"),
            Field("state", "`waiting`, `restoring`, `running`, `finished` or `aborted`"),
            Field("arrived", "time"),
            Field("prompt_tokens", ""),
            Field("output_tokens", "so far"),
            Field("device_tokens", "of the prompt: found on the device"),
            Field("peer_tokens", "of the prompt: loaded from memory of other servers"),
            Field("host_tokens", "of the prompt: loaded from host memory"),
            Field("ssd_tokens", "of the prompt: loaded from ssd"),
            Field("recomputed_tokens", "of the prompt: computed"),
            Field("restore", "`none`, `waiting`, `completed`, `split`, `cut short`, `expired` or `cancelled`"),
            Field("restore_seconds", "waited for pages from below the device"),
            Field("restore_story", "JSON object: how its prefix came back, and why so; empty until it is looked for"),
            Field("queue_seconds", "from arrival to the first computation; empty before it"),
            Field("first_token_seconds", "from arrival to the first output token; empty before it"),
            Field("ended", "time; empty while it is there"),
            Field("pages", "of its block table"),
            Field("tiers", "where its pages were when it was admitted, as runs: `device 12, host 30, compute 4`"),
            Field("last_page", "hex key of the last whole page of its prompt; empty until it is known, or without one"),
            Field("block_table", "device pages in order, as runs: `17-40 3 90-95`; empty unless it is running"),
        ),
        f"{_STATE}; 300 s after its end, at most 256 ended ones", "every rank, each sampling", _EVERYONE,
        "one request: why was it slow?",
    ),
    KeySpec(
        "events", "SERVER:events", Kind.STREAM,
        (
            Field("rank", "who says it"),
            Field("sequence", "per rank, from 1: a gap is what was lost"),
            Field("time", "when it happened"),
            Field("kind", "`device.out`, `page.corrupt`, `restore.expired`, ..."),
            Field("fields", "JSON object"),
        ),
        f"{_STREAM}, about bus.events entries", "every rank, as they happen", _EVERYONE, "what happened",
    ),
    KeySpec(
        "questions", "SERVER:questions", Kind.STREAM,
        (
            Field(
                "page",
                "hex key of a page, or its first 16 digits at least, evenly many: where is it? The answer is "
                "`SERVER:RANK:page:KEY`, with KEY as it was asked for",
            ),
            Field("prefix", "hex key of a page: where are the pages before it? `SERVER:RANK:prefix:KEY`"),
            Field("map", "a tier: what is in each of its slots? `SERVER:RANK:map:TIER`"),
            Field("nodes", f"a number, at most {MOST_LISTED_NODES}: which subtrees are largest? `SERVER:RANK:nodes`"),
        ),
        f"{_STREAM}, 1,000 entries", _EVERYONE, "every rank",
        "ask something; an entry has exactly one of these fields",
    ),
    KeySpec(
        "page", "SERVER:RANK:page:KEY", Kind.HASH,
        (
            Field("time", "when this was true"),
            Field(
                "held",
                "1, or 0 if it is not known below the device: no other field but `whole_key` and `device_slot` then",
            ),
            Field("whole_key", "all digits; left out where KEY is shorter and begins none below the device, or more"),
            Field("namespace", "hex digest"),
            Field("depth", "its position in its sequence, from 1"),
            Field("parent", "hex key of the page before it; empty for a first page"),
            Field("children", "pages that follow it"),
            Field("bytes", ""),
            Field("uses", ""),
            Field("pins", ""),
            Field("device_slot", "in SGLang's pool; empty if the device does not have it, or that is not known"),
            Field("host_slot", "empty if host memory does not have it"),
            Field("peer", "`DONOR lease NUMBER slot NUMBER` of the copy in another server's memory; empty without one"),
            Field("ssd_placement", "`DEVICE:SLOT ...`, one for each stripe unit; empty if ssd does not have it"),
            Field("generation", "of the copy on ssd; empty without one"),
            Field("checksum", "hex, of its bytes; empty where it is not known yet"),
            Field("last_used_seconds", "before `time`, to within an interval; empty if not since this server's start"),
            Field("origin", "`computed here`, or `recovered` from the devices at the start"),
        ),
        "60 s", "the rank that was asked", "who asked", "answer to a question: one page",
    ),
    KeySpec(
        "prefix", "SERVER:RANK:prefix:KEY", Kind.HASH,
        (
            Field("time", "when this was true"),
            Field("pages", "of the sequence, from its first page to this one; 0 if the page is not known here"),
            Field("listed", f"the last so many of them are in `table`: at most {MOST_LISTED_PAGES}"),
            Field(
                "table",
                "`DEPTH:KEY:PLACES ...`, one for each page: its position, from 1; 16 digits of its key; "
                "`device=SLOT,host=SLOT,peer=DONOR/LEASE/SLOT,ssd=DEVICE/SLOT+DEVICE/SLOT`, or `-`",
            ),
        ),
        "60 s", "the rank that was asked", "who asked", "answer to a question: the pages of a sequence",
    ),
    KeySpec(
        "map", "SERVER:RANK:map:TIER", Kind.HASH,
        (
            Field("time", "when this was true"),
            Field("reason", "why there is none: no other field then; empty if there is one"),
            Field("slots", "of the tier, each of one page; on ssd of one stripe unit"),
            Field("first_slot", "number of the first one: SGLang's pool begins with 1, all others with 0"),
            Field("slot_bytes", "of one slot"),
            Field("slots_per_cell", "1, or more where the text would get too long: the cell is what most of them are"),
            Field(
                "parts",
                "`NAME:SLOTS ...`: devices by number, or leases as `DONOR/LEASE`, in order; each begins with a cell of "
                "its own; empty where the tier is of one piece",
            ),
            Field("cells", "runs of cells in order, `free 120 cached 30 pinned 2`; see below for the words"),
        ),
        "60 s", "the rank that was asked", "who asked", "answer to a question: the slots of a tier",
    ),
    KeySpec(
        "nodes", "SERVER:RANK:nodes", Kind.HASH,
        (
            Field("time", "when this was true"),
            Field("reason", "why there are none: no other field then; empty if there are"),
            Field("nodes", "of SGLang's radix tree"),
            Field("complete", "0 if the tree was too large to walk: nodes and tokens are of a part"),
            Field("listed", "those with the largest subtrees, as many as were asked for"),
            Field(
                "table",
                "`NODE:PARENT:TOKENS:SUBTREE_TOKENS:HITS:LOCKS:IDLE_SECONDS:KEY ...`, the largest subtree first; "
                "see below",
            ),
        ),
        "60 s", "the rank that was asked", "who asked", "answer to a question: the largest subtrees",
    ),
    KeySpec(
        "control", "SERVER:control", Kind.STREAM,
        (
            Field("id", "chosen by the author, unique, at most 64 characters of A-Z a-z 0-9 . _ -"),
            Field("author", "who wants it, for the audit"),
            Field("deadline", "time by Redis' clock after which it must not be carried out any more"),
            Field("command", "JSON object with `type` and its arguments; see below"),
        ),
        f"{_STREAM}, 1,000 entries", "operators", "rank dp0-tp0 and its peers, if bus.control is true",
        "commands to this server",
    ),
    KeySpec(
        "command", "SERVER:command:ID", Kind.HASH,
        (
            Field("time", "of the last change"),
            Field("state", "`accepted`, then `done`, `refused`, `expired`, or `partly`: ranks differ, or are silent"),
            Field("author", ""),
            Field("type", "of the command; empty if it could not be read"),
            Field("reason", "why it was not carried out, or not everywhere; empty if it was"),
            Field("rank:*", "what became of it at each rank: `done`, `done: RESULT`, `refused: REASON` or `expired`"),
        ),
        "1 h", "every rank that got it", "who sent the command", "what became of a command",
    ),
)  # fmt: skip

BY_NAME = {spec.name: spec for spec in KEYS}


class Keys:
    """Key names under one prefix."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    def of(self, name: str, **words: str) -> str:
        """The key of spec `name`, its variable words (lower case) put in: `of("tier", server=…, rank=…, tier="host")`.

        Raises KeyError for an unknown spec or a missing word.
        """
        return f"{self.prefix}:{_TEMPLATES[name].format_map(words)}"


def _template(pattern: str) -> str:
    """`SERVER:RANK:tier:TIER` as `{server}:{rank}:tier:{tier}`."""
    parts = pattern.split(":")
    filled = ("{link}" if part == "FROM-TO" else f"{{{part.lower()}}}" if part.isupper() else part for part in parts)
    return ":".join(filled)


#: Keys are made by the thousand.
_TEMPLATES = {spec.name: _template(spec.pattern) for spec in KEYS}
