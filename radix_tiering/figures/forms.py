"""Values of several parts as one text in a field of a hash: how each is written, and how it is read.

What cannot be read is empty, as if it had not been said.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from .declare import Figures, Form
from .story import RestoreStory

#: Hex digits of a key where pages are listed.
KEY_DIGITS = 16

_PLACE = r"(?:device=\d+|host=\d+|peer=[^,=]+|ssd=\d+/\d+(?:\+\d+/\d+)*)"


class LeaseEntry(Figures):
    """One lease, as one of its two sides knows it."""

    lease: int  # its number at its donor
    bytes: int
    state: str  # at the donor: of the run; at the borrower: of the lease
    seconds_left: float
    pinned: bool = False


class MapPart(NamedTuple):
    """A stretch of a tier's slots: a device of the stripe set, or a lease."""

    name: str  # number of the device, or `DONOR/LEASE`
    slots: int


class PrefixPage(NamedTuple):
    """One page of a sequence, and the places of its copies. Without any, it is nowhere."""

    depth: int  # its position in its sequence, from 1
    key: str  # the first 16 hex digits
    device: int | None = None  # slot
    host: int | None = None  # slot
    peer: str = ""  # DONOR/LEASE/SLOT
    ssd: tuple[tuple[int, int], ...] = ()  # device and slot of each stripe unit


class NodeEntry(NamedTuple):
    """One node of SGLang's radix tree. On the bus, hits and locks may not be said."""

    node: int
    parent: int | None  # None: it hangs at the root
    tokens: int
    subtree_tokens: int  # its own, and those of all nodes behind it
    hits: int | None  # requests that ended at it or behind it since it is in the tree
    locks: int | None  # requests that are there now and use it
    idle_seconds: float | None  # since the last of the hits
    key: str  # hex key of its last page, on the bus its first 16 digits; empty where it is not known


def to_text(value: float | str | None) -> str:
    """A number is decimal text, a time has six digits after the point, what is not known is empty."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6f}" if math.isfinite(value) else ""
    if isinstance(value, bool):
        return "1" if value else "0"
    return str(value)


def _read_names(text: str) -> tuple[str, ...]:
    """`dp0-tp0,dp0-tp1` as names."""
    return tuple(name for name in text.split(",") if name)


def read_object(text: str) -> dict[str, Any]:
    """A JSON object; empty where the text is something else."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _read_story(text: str) -> RestoreStory | None:
    try:
        return msgspec.json.decode(text, type=RestoreStory) if text else None
    except msgspec.DecodeError:
        return None


def _parts(
    pattern: str, make: Callable[[re.Match[str]], Any], write: Callable[[Any], str], separator: str = " "
) -> Form:
    """Parts one after the other, each of this pattern; nothing if one of them is not."""
    compiled = re.compile(pattern, re.ASCII)

    def read(text: str) -> tuple[Any, ...]:
        words = text.split(separator) if text else []
        found = [match for word in words if (match := compiled.fullmatch(word))]
        return tuple(map(make, found)) if len(found) == len(words) else ()

    return Form(lambda parts: separator.join(map(write, parts)), read)


def write_table(table: tuple[int, ...], before: tuple[tuple[int, ...], str] = ((), "")) -> str:
    """`(17, 40, 3, 3)` as `17-40 3`. `before`, an earlier table and its text, saves the work that was done for it.

    A table mostly grows at its end, so that of a long one little is new from one sample to the next.
    """
    old, text = before
    if old == table:
        return text
    # The last run of the earlier one may have grown.
    same = max(0, len(old) - 2)
    if same and old[:same] == table[:same]:
        text = text.rpartition(" ")[0]
    else:
        same, text = 0, ""
    pairs = zip(table[same::2], table[same + 1 :: 2], strict=True)
    runs = [str(first) if first == last else f"{first}-{last}" for first, last in pairs]
    return " ".join([text, *runs] if text else runs)


def _read_cells(text: str) -> tuple[tuple[str, int], ...]:
    words = text.split()
    if len(words) % 2 or not all(count.isdecimal() for count in words[1::2]):
        return ()
    return tuple(zip(words[::2], map(int, words[1::2]), strict=True))


def _write_lease(view: Any) -> str:
    text = f"{view.lease}:{view.bytes}:{view.state}:{view.seconds_left:.1f}"
    return f"{text}:pinned" if view.pinned else text


def _read_lease(match: re.Match[str]) -> LeaseEntry:
    lease, size, state, seconds, pinned = match.groups()
    return LeaseEntry(lease=int(lease), bytes=int(size), state=state, seconds_left=float(seconds), pinned=bool(pinned))


def _write_page(page: Any) -> str:
    places = []
    if page.device_slot is not None:
        places.append(f"device={page.device_slot}")
    if page.host_slot is not None:
        places.append(f"host={page.host_slot}")
    if page.peer is not None:
        places.append(f"peer={'/'.join(map(str, page.peer))}")
    if page.ssd_placement:
        places.append("ssd=" + "+".join(f"{device}/{slot}" for device, slot in page.ssd_placement))
    return f"{page.depth}:{page.key[:KEY_DIGITS]}:{','.join(places) or '-'}"


def _read_page(match: re.Match[str]) -> PrefixPage:
    depth, key, said = match.groups()
    places = {} if said == "-" else dict(place.split("=", 1) for place in said.split(","))
    units = [unit.split("/") for unit in places.get("ssd", "").split("+") if unit]
    return PrefixPage(
        int(depth),
        key,
        device=_maybe(places.get("device")),
        host=_maybe(places.get("host")),
        peer=places.get("peer", ""),
        ssd=tuple((int(device), int(slot)) for device, slot in units),
    )


def _write_node(node: Any) -> str:
    parent = "" if node.parent is None else node.parent
    idle = "" if node.idle_seconds is None else f"{node.idle_seconds:.1f}"
    key = node.key[:KEY_DIGITS]
    return f"{node.node}:{parent}:{node.tokens}:{node.subtree_tokens}:{node.hits}:{node.locks}:{idle}:{key}"


def _read_node(match: re.Match[str]) -> NodeEntry:
    """A number may be missing."""
    node, parent, tokens, subtree, hits, locks, idle, key = match.groups()
    return NodeEntry(
        int(node),
        _maybe(parent),
        int(tokens),
        int(subtree),
        _maybe(hits),
        _maybe(locks),
        float(idle) if idle else None,
        key,
    )


def _maybe(text: str | None) -> int | None:
    return int(text) if text else None


#: `dp0-tp0,dp0-tp1`.
NAMES = Form(",".join, _read_names)
#: A JSON object.
OBJECT = Form(lambda content: json.dumps(content, default=str), read_object, {})
STORY = Form(lambda story: msgspec.json.encode(story).decode(), _read_story, None)
#: `device 12, host 30`.
RUNS = _parts(r"\s*(\S+)\s+(\d+)\s*", lambda match: (match[1], int(match[2])), lambda run: f"{run[0]} {run[1]}", ", ")
#: `17-40 3`: first and last pages.
TABLE = _parts(r"(\d+)(?:-(\d+))?", lambda match: (int(match[1]), int(match[2] or match[1])), str)._replace(
    write=write_table
)
#: `0:17 1:4`: device and slot of each stripe unit.
PLACEMENT = _parts(r"(\d+):(\d+)", lambda match: (int(match[1]), int(match[2])), lambda unit: f"{unit[0]}:{unit[1]}")
#: `0:4096 1:4096`, or `beta.dp0-tp0/12:64`: stretches of slots.
PARTS = _parts(r"(.+):(\d+)", lambda match: MapPart(match[1], int(match[2])), lambda part: f"{part[0]}:{part[1]}")
#: `free 120 cached 30`.
CELLS = Form(lambda cells: " ".join(f"{word} {count}" for word, count in cells), _read_cells)
#: `12:67108864:lent:1.9 13:67108864:recalled:0.0:pinned`.
LEASES = _parts(r"(\d+):(\d+):([^:]*):(-?\d+(?:\.\d+)?)(?::(.*))?", _read_lease, _write_lease)
#: `1:0f3a...:device=17,ssd=0/5+1/9 2:77c0...:-`.
PREFIX = _parts(rf"(\d+):([0-9a-f]{{16}}):(-|{_PLACE}(?:,{_PLACE})*)", _read_page, _write_page)
#: `17:4:1024:8192:3:1:12.5:0f3a...`.
NODES = _parts(r"(\d+):(\d*):(\d+):(\d+):(\d*):(\d*):(\d*(?:\.\d+)?):([0-9a-f]*)", _read_node, _write_node)
