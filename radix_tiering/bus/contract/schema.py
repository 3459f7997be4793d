"""The bus's contract: every key that is written, as one table. `docs/bus.md` shows it; a test holds both together.

The fields of a hash are the figures of its view.

Names are `PREFIX:SERVER:RANK:WHAT`. A server's name holds no colon, a rank's name is `dp0-tp0`. Numbers are decimal
text. Units are in the fields' names: `_bytes`, `_seconds`, `_tokens`, `_pages`; a field without one is a plain count.
A `time` is in seconds since 1970 by the writer's clock; `clock_offset_seconds` says how far that clock is off
Redis' own. A counter grows from the start of its server and never shrinks: a smaller value means a new server. What is
not known, or does not apply, is an empty field.

No key holds token ids, text of prompts or answers, cache salts, or secrets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from ...figures.declare import figures_of
from .gpu_views import GpuView, ReachView
from .view import View
from .views import (
    CommandView,
    DeviceView,
    DirectoryView,
    LeasesView,
    LinkView,
    MapView,
    NodesView,
    PageView,
    PrefixView,
    RankView,
    RequestView,
    ServerView,
    StripeSetView,
    TierView,
    TreeView,
)

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
#: Tiers that are looked for where a rank has not said yet which it has; it may have others.
TIERS = ("device", "peer", "host", "ssd")
#: What may be the name of a tier.
TIER_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")
#: How long the text of a map gets at most, bytes; and how many nodes an answer lists at most.
MOST_MAP_BYTES, MOST_LISTED_NODES = 262_144, 1000
#: How long the outcome of a command is kept, seconds.
COMMAND_TTL = 3600.0
#: How many links of single donors a rank names at most, and how many tiers are looked for.
MOST_DONOR_LINKS, MOST_TIERS = 128, 16


class RedisKind(Enum):
    """Redis types that are used."""

    STRING = "string"
    HASH = "hash"
    SORTED_SET = "sorted set"
    STREAM = "stream"


class FieldSpec(NamedTuple):
    """A field of a hash or of a stream entry; `NAME*` stands for several that begin so."""

    name: str
    meaning: str


class KeySpec(NamedTuple):
    """One row of the table."""

    name: str  # how the code calls it
    pattern: str  # after the prefix; words in capitals are variable
    kind: RedisKind
    fields: tuple[FieldSpec, ...]  # of a string: one, of the value; of a sorted set: two, member and score
    ttl: str  # for people
    writer: str
    reader: str
    meaning: str


_STATE = "max(5 s, 4 intervals)"
_STREAM = "1 h after its server's end"
_EVERYONE = "everyone"
_INTERVAL, _SAMPLING = "every rank, each interval", "every rank, each sampling"
_WITH_SSD, _WITH_GPU = "ranks with an ssd tier, each interval", "ranks on an NVIDIA GPU, each interval"
_TRUE, _SAMPLED = "when this was true", "when this was sampled"


def _hash(
    name: str,
    pattern: str,
    view: type[View],
    meaning: str,
    *,
    time: str = _TRUE,
    writer: str = _INTERVAL,
    reader: str = _EVERYONE,
    ttl: str = _STATE,
) -> KeySpec:
    """A hash with the figures of its view; `time`: what that field means here."""
    fields = (FieldSpec("time", time), *(field for field in _fields(view) if field.name != "time"))
    return KeySpec(name, pattern, RedisKind.HASH, fields, ttl, writer, reader, meaning)


def _fields(view: type[View]) -> Iterator[FieldSpec]:
    for name, figure, family in figures_of(view):
        yield FieldSpec(f"{family}:*" if family else name, figure.help)


def _answer(name: str, pattern: str, view: type[View], meaning: str) -> KeySpec:
    return _hash(name, pattern, view, meaning, writer="the rank that was asked", reader="who asked", ttl="60 s")


#: Ways between tiers; those to and from memory of other servers are there for each donor, too.
LINKS = (
    "device-host", "host-device", "host-ssd", "ssd-host", "ssd-device", "peer-host", "host-peer", "peer-device",
    "device-peer",
)  # fmt: skip

KEYS: tuple[KeySpec, ...] = (
    KeySpec(
        "schema",
        "schema",
        RedisKind.STRING,
        (FieldSpec("value", f"{SCHEMA_VERSION}"),),
        "none",
        "every server",
        _EVERYONE,
        "version of this contract; a reader that knows another one must stop",
    ),
    KeySpec(
        "servers",
        "servers",
        RedisKind.SORTED_SET,
        (
            FieldSpec("member", "name of a server"),
            FieldSpec("score", "its last heartbeat, seconds since 1970 by Redis' clock"),
        ),
        "none; members older than 1 h are removed",
        "every server, each interval",
        _EVERYONE,
        "who is or was there; alive are those whose `info` exists",
    ),
    _hash("info", "SERVER:info", ServerView, "one server", time="heartbeat", writer="rank dp0-tp0, each interval"),
    _hash(
        "rank",
        "SERVER:RANK:rank",
        RankView,
        "one rank of a server: a scheduler process with a tier stack of its own",
        time="heartbeat",
    ),
    _hash("tier", "SERVER:RANK:tier:TIER", TierView, f"one tier: {', '.join(f'`{tier}`' for tier in TIERS)}, `remote`"),
    _hash("stripe", "SERVER:RANK:stripe", StripeSetView, "the stripe set beneath the ssd tier", writer=_WITH_SSD),
    _hash("ssd", "SERVER:RANK:ssd:NUMBER", DeviceView, "one device of the stripe set", writer=_WITH_SSD),
    _hash(
        "link",
        "SERVER:RANK:link:FROM-TO",
        LinkView,
        "one way between tiers: `device-host`, `host-device`, `host-ssd`, `ssd-host`, `ssd-device`, `peer-host`, "
        "`host-peer`, `peer-device`, `device-peer`; and of these last, `DONOR-host`, `host-DONOR`, `DONOR-device` and "
        "`device-DONOR` for each donor, counted since it was met; with a remote tier `host-remote`, `remote-host`",
    ),
    _hash(
        "gpu",
        "SERVER:RANK:gpu",
        GpuView,
        "the GPU of one rank, as NVML sees it; what NVML does not support is empty",
        time="when NVML was asked: every 2 s",
        writer=_WITH_GPU,
    ),
    _hash(
        "reach",
        "SERVER:RANK:reach:GPU",
        ReachView,
        "how the GPU of one rank reaches another GPU of the machine, by its uuid",
        time="when NVML was asked",
        writer=_WITH_GPU,
    ),
    _hash(
        "lent",
        "SERVER:RANK:lent:BORROWER",
        LeasesView,
        "what this rank lends to one borrower (`SERVER.RANK`), as the donor knows it",
        writer="ranks that lend, each interval",
    ),
    _hash(
        "borrowed",
        "SERVER:RANK:borrowed:DONOR",
        LeasesView,
        "what this rank borrows from one donor (`SERVER.RANK`), as the borrower knows it",
        writer="ranks that borrow, each interval",
    ),
    _hash("tree", "SERVER:RANK:tree", TreeView, "SGLang's radix tree on the device", time=_SAMPLED, writer=_SAMPLING),
    _hash("directory", "SERVER:RANK:directory", DirectoryView, "summary of the directory of pages below the device"),
    KeySpec(
        "requests",
        "SERVER:RANK:requests",
        RedisKind.SORTED_SET,
        (FieldSpec("member", "request id"), FieldSpec("score", "time of its arrival")),
        _STATE,
        _SAMPLING,
        _EVERYONE,
        "requests that are there now, and those that ended lately",
    ),
    _hash(
        "request",
        "SERVER:RANK:request:RID",
        RequestView,
        "one request: why was it slow?",
        time=_SAMPLED,
        writer=_SAMPLING,
        ttl=f"{_STATE}; 300 s after its end, at most 256 ended ones",
    ),
    KeySpec(
        "events",
        "SERVER:events",
        RedisKind.STREAM,
        (
            FieldSpec("rank", "who says it"),
            FieldSpec(
                "life",
                "of the rank: its process, when that began, in seconds since its machine did, and a number that it "
                "drew at random",
            ),
            FieldSpec("sequence", "per life, from 1: a gap is what was lost"),
            FieldSpec("time", "when it happened"),
            FieldSpec("kind", "`device.out`, `page.corrupt`, `restore.expired`, ..."),
            FieldSpec("fields", "JSON object"),
        ),
        f"{_STREAM}, about bus.events entries",
        "every rank, as they happen",
        _EVERYONE,
        "what happened",
    ),
    KeySpec(
        "questions",
        "SERVER:questions",
        RedisKind.STREAM,
        (
            FieldSpec(
                "page",
                "hex key of a page, or its first 16 digits at least, evenly many: where is it? The answer is "
                "`SERVER:RANK:page:KEY`, with KEY as it was asked for",
            ),
            FieldSpec("prefix", "hex key of a page: where are the pages before it? `SERVER:RANK:prefix:KEY`"),
            FieldSpec("map", "a tier: what is in each of its slots? `SERVER:RANK:map:TIER`"),
            FieldSpec(
                "nodes", f"a number, at most {MOST_LISTED_NODES}: which subtrees are largest? `SERVER:RANK:nodes`"
            ),
        ),
        f"{_STREAM}, 1,000 entries",
        _EVERYONE,
        "every rank",
        "ask something; an entry has exactly one of these fields",
    ),
    _answer("page", "SERVER:RANK:page:KEY", PageView, "answer to a question: one page"),
    _answer("prefix", "SERVER:RANK:prefix:KEY", PrefixView, "answer to a question: the pages of a sequence"),
    _answer("map", "SERVER:RANK:map:TIER", MapView, "answer to a question: the slots of a tier"),
    _answer("nodes", "SERVER:RANK:nodes", NodesView, "answer to a question: the largest subtrees"),
    KeySpec(
        "control",
        "SERVER:control",
        RedisKind.STREAM,
        (
            FieldSpec("id", "chosen by the author, unique, at most 64 characters of A-Z a-z 0-9 . _ -"),
            FieldSpec("author", "who wants it, for the audit"),
            FieldSpec("deadline", "time by Redis' clock after which it must not be carried out any more"),
            FieldSpec("command", "JSON object with `type` and its arguments; see below"),
        ),
        f"{_STREAM}, 1,000 entries",
        "operators",
        "rank dp0-tp0 and its peers, if bus.control is true",
        "commands to this server",
    ),
    _hash(
        "command",
        "SERVER:command:ID",
        CommandView,
        "what became of a command",
        time="of the last change",
        writer="every rank that got it",
        reader="who sent the command",
        ttl="1 h",
    ),
)

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


def entry_parts(entry: str) -> tuple[int, int]:
    """The id of a stream's entry in the order that streams have."""
    milliseconds, _, number = entry.partition("-")
    return int(milliseconds), int(number or 0)


def is_used_up(newest: str) -> bool:
    """Whether a stream with this newest entry takes hardly any more, since ids only grow: somebody gave it one beyond
    all times. Whoever owns it begins it anew."""
    return entry_parts(newest)[0] >= 1 << 63
