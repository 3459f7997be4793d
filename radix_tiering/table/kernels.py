"""The page table's rows and everything that changes them, compiled.

A page is a row of 32-bit words in one array, and no object of Python's. What is done to one is done here, and what is
done to many is a loop over it, in one call. The rules are those that the head of `page_table` says.

Kernels are called with the page table's lock held and keep the interpreter: one that gave it up would have to win it
back with the lock in hand, which takes up to 15 ms beside a busy thread. So a kernel is one step for everybody else,
and `find` and `probe` need no lock.

A kernel calls nobody back. What others have to do after it (give places back, tell of a lost pin, go on with what
leaves) it notes, and the page table does it next.

All of this is one file, because the compiled code is kept on disk beside it and compared with this file alone.
"""

# mypy: allow-untyped-defs, no-check-untyped-defs

from __future__ import annotations

from collections.abc import Callable

import numba  # type: ignore[import-untyped]
import numpy as np

from ..base.compiled import Kernel, compiled
from .tier_copies import HOST

# ---- a row ----

#: The key is the first four 64-bit words of a row, its last use the fifth.
LAST = 4
#: 32-bit words, from behind those.
PARENT, CHILD, NEXT, PREV = 10, 11, 12, 13  # rows; -1: none. Siblings are a list, the youngest first
DEPTH = 14  # in its sequence, from 1; 0: the root of a namespace
SPACE = 15  # the root of its namespace: a row
FLAGS = 16
GENERATION = 17  # how often the row has been given out
PINS = 18  # requests that are about to read it, and writes from it
KEPT = 19  # children that an operator keeps
HELD = 20  # children that are in host memory or pinned, or that pages behind them are
USE = 21  # in its last bits those that the pages of the longest sequence that it was used in have; before them its uses
TIERS = 22  # four bits for each tier
PLACES = 23  # one word for each tier: where its copy is there; -1: nowhere
#: Then, for each durable tier, how many children have a whole copy in it.
#: Of a root, in place of a last use: the pages of the namespace, and the bytes of one. By tier what one takes there;
#: and, as its pins, the rows that it is the root of, those of pages included that have left and are pinned.
ROOT_PAGES, ROOT_LENGTH = 2 * LAST, 2 * LAST + 1

#: Of `USE`: where the uses begin, what is before them, and the most uses that are told apart.
USES_AT, DOUBLINGS, MOST_USES = 5, 31, (1 << 26) - 1

#: Of `FLAGS`:
USED, DROPPED, KEEP, RECOVERED, IS_HELD, PENDING, LANDED, UNHASHED = 1, 2, 4, 8, 16, 32, 64, 128
KIND, KINDS = 8, 255  # from this bit on, eight: as what the page is counted, see `kind_of`
#: From this bit on, two for each tier: how often it was entered in the heap, by which its last entry is known.
ENTERED, ENTERED_BITS = 16, 2
TOLD = 1 << 30  # others were told that it is here, see `announced`
#: Of `TIERS`, for each tier: its copy is on the way, or whole; the heap has it; it has lost its copy,
#: and pages behind it have not.
BEGUN, WHOLE, QUEUED, GAP = 1, 2, 4, 8
BITS = 4
MOST_TIERS = 7
ANY_COPY, ANY_WHOLE = 0x3333333, 0x2222222

# ---- what is counted ----

HIGH, FREE = 0, 1  # rows that were ever used; the first free one of those, -1: none
PAGES, FIRST, DEEPEST = 2, 3, 4
PINNED, KEPT_PAGES = 5, 6
ROOTS = 7  # pages that have left while others were behind them
NOTES = 8  # that nobody has read yet
TIER_COUNT = 9
NEAR = 10  # tiers, in bits
CHANGES = 11  # pages that have entered, left or changed
FREE_ROWS = 12  # behind the first free one, and it
#: From here on, a block for each tier:
TIER_BLOCK, BLOCK = 16, 16
WHOLE_PAGES, WHOLE_BYTES, COMING_BYTES, HEAP, IN_HEAP, BY_USES, REUSED, DOUBLED = range(8)
#: The word of a row that says how many children have a whole copy there; 0: the tier is not durable.
BEHIND = 8
SWEPT = 9  # up to here the heap was last looked through for entries that count no more
#: Pages by what they are counted as.
COUNTS = TIER_BLOCK + BLOCK * MOST_TIERS + 16
#: Pages by depth.
DEPTHS = COUNTS + (2 << MOST_TIERS)
#: The deepest that is told apart.
DEEP = (1 << 22) - 1
META_WORDS = DEPTHS + DEEP + 1

#: What is noted, beside a tier: a place of it is free.
LOST_PIN, LEFT_LANDING, LEAVES, TOLD_LEFT = 8, 9, 10, 11
NOTE_ROOM = 1 << 15
#: Pages handled in one call: what they note has room.
BATCH = 1024

#: Entries of a heap that one that comes has looked at, where many count no more.
_SWEPT_AT_ONCE = 4

#: In the rank of a page in host memory: no near tier has it.
_ALONE = 1 << 30
#: Odd numbers, by which the words of a key are multiplied: any bits of it may be all that tells keys apart.
_MIX, _MIX_0, _MIX_1 = 0x1E3779B97F4A7C15, 0x3C79AC492BA7B653, 0x1C69B3F74AC4AE35
_MIX_2, _MIX_3 = 0x2545F4914F6CDD1D, 0x5851F42D4C957F2D
_LOW = 0x7FFFFFFF
#: Generations that the entries of a heap tell apart.
TIMES = (1 << 29) - 1

#: The types of the arrays that every kernel takes: `words`, the same memory as 64-bit words, the hash table, a heap for
#: each tier, what is counted, notes.
_STATE = "int32[:,::1], int64[:,::1], int64[::1], int64[:,:,::1], int64[::1], int64[:,::1]"


def _entry(answer: str, arguments: str = "") -> Callable[[Kernel], Kernel]:
    """A kernel that Python calls."""
    return compiled(f"{answer}({_STATE}{', ' if arguments else ''}{arguments})")


def _part(function: Kernel) -> Kernel:
    """A kernel that only other kernels call."""
    made: Kernel = numba.njit(function)
    return made


# ---- finding ----


@_part
def _home(space, k0, k1, k2, k3, size):
    """The 32 bits that stand for a key in the hash table, and where it is looked for first."""
    tag = (space * _MIX + k0 * _MIX_0 + k1 * _MIX_1 + k2 * _MIX_2 + k3 * _MIX_3) >> 32 & 0xFFFFFFFF
    return tag, (tag * size) >> 32


@_part
def _home_of(words, longs, r, size):
    return _home(words[r, SPACE], longs[r, 0], longs[r, 1], longs[r, 2], longs[r, 3], size)


@_part
def _find(words, longs, table, space, k0, k1, k2, k3):
    """The row of a page, hidden or not; -1: none."""
    size = table.shape[0]
    tag, at = _home(space, k0, k1, k2, k3, size)
    while table[at] != 0:
        if table[at] >> 31 == tag:
            r = (table[at] & _LOW) - 1
            same = longs[r, 0] == k0 and longs[r, 1] == k1 and longs[r, 2] == k2 and longs[r, 3] == k3
            if same and words[r, SPACE] == space:
                return r
        at = at + 1 if at + 1 < size else 0
    return -1


@_part
def _hidden(words, meta, r):
    """Whether a page before this one has left."""
    if meta[ROOTS] == 0:
        return False
    while words[r, DEPTH] > 0:
        if words[r, FLAGS] & DROPPED:
            return True
        r = words[r, PARENT]
    return False


@_part
def _hidden_behind(words, meta, r, before, hidden):
    """`_hidden`, where it is known of the page looked at before this one (-1: of none). So who looks at the pages of a
    chain, one after the other, climbs to its beginning once, and not once a page."""
    if before >= 0 and words[r, PARENT] == before:
        return hidden
    return _hidden(words, meta, r)


@_part
def _has_left(words, meta, r, hidden):
    """Whether a page has left, or one before it, as `hidden` says, or all of its namespace: nobody finds it any more,
    though it may take a while until it is gone."""
    return hidden or (words[r, FLAGS] | words[words[r, SPACE], FLAGS]) & DROPPED != 0


@_part
def _hash_in(words, longs, table, r):
    size = table.shape[0]
    tag, at = _home_of(words, longs, r, size)
    while table[at] != 0:
        at = at + 1 if at + 1 < size else 0
    table[at] = (tag << 31) | (r + 1)


@_part
def _hash_out(words, longs, table, r):
    """What follows moves up: no marks stay behind that years of turnover would fill the table with."""
    size = table.shape[0]
    tag, at = _home_of(words, longs, r, size)
    while table[at] != (tag << 31) | (r + 1):
        at = at + 1 if at + 1 < size else 0
    hole = at
    while True:
        at = at + 1 if at + 1 < size else 0
        bucket = table[at]
        if bucket == 0:
            break
        home = ((bucket >> 31) * size) >> 32
        moves = (home <= hole or home > at) if hole <= at else (home <= hole and home > at)
        if moves:
            table[hole] = bucket
            hole = at
    table[hole] = 0


@_part
def _handle(words, r):
    """A row with its generation, in one number."""
    return np.int64(words[r, GENERATION]) << 32 | np.int64(r)


@_part
def _entry_of(words, r, tier):
    """The last entry of a page in the heap of a tier, in one number: its row, of which time it is, its generation."""
    time = np.int64(words[r, FLAGS] >> ENTERED + ENTERED_BITS * tier & 3)
    return (np.int64(words[r, GENERATION]) & TIMES) << 34 | time << 32 | np.int64(r)


# ---- what a page has ----


@_part
def _of(words, r, tier):
    return words[r, TIERS] >> (BITS * tier) & 15


@_part
def _set(words, r, tier, bit):
    words[r, TIERS] = words[r, TIERS] | bit << (BITS * tier)


@_part
def _clear(words, r, tier, bit):
    words[r, TIERS] = words[r, TIERS] & ~(bit << (BITS * tier))


@_part
def _elsewhere(words, r, tier):
    """Whether another tier than this one has a whole copy."""
    return words[r, TIERS] & ANY_WHOLE & ~(WHOLE << (BITS * tier)) != 0


@_part
def _kept(words, r):
    return words[r, KEPT] > 0 or words[r, FLAGS] & KEEP != 0


@_part
def _behind(words, meta, r, tier):
    return words[r, meta[TIER_BLOCK + BLOCK * tier + BEHIND]]


@_part
def _durable(meta, tier):
    return meta[TIER_BLOCK + BLOCK * tier + BEHIND] != 0


@_part
def _size(words, r, tier):
    """Bytes that this page takes there."""
    return np.int64(words[words[r, SPACE], PLACES + tier])


# ---- the order in which pages leave ----
# A heap of lower bounds for each tier: a rank only rises with use, so that a use changes no heap. What surfaces with a
# rank of the past sinks to its rank of now; what may not leave is taken out, and put back when it may (`_offer`).


@_part
def _rank(words, longs, meta, r, tier):
    block = TIER_BLOCK + BLOCK * tier
    last, high, uses = longs[r, LAST], np.int64(0), np.int64(words[r, USE] >> USES_AT)
    if meta[block + BY_USES]:
        high = min(uses, _ALONE - 1)
    if meta[block + DOUBLED]:
        last += meta[block + DOUBLED] * (words[r, USE] & DOUBLINGS)
    if uses > 1:
        last += meta[block + REUSED]
    if tier == HOST:
        near = False
        for other in range(1, meta[TIER_COUNT]):
            near = near or (meta[NEAR] >> other & 1 != 0 and _of(words, r, other) & WHOLE != 0)
        if not near:
            high += _ALONE
    return high, (last << 22) + (DEEP - min(np.int64(words[r, DEPTH]), DEEP))


@_part
def _may_leave(words, meta, r, tier):
    if not _of(words, r, tier) & WHOLE or words[r, PINS] > 0 or _kept(words, r) or words[r, FLAGS] & DROPPED:
        return False
    if _durable(meta, tier):
        # What follows it in memory alone goes with it, if it has no copy there itself: it is no more recent.
        return _behind(words, meta, r, tier) == 0
    if _elsewhere(words, r, tier):
        return True
    # What has no other copy takes along what is behind it. From host memory as long as nothing of that is there or
    # wanted: nothing is lost that is worth more, and the last page there can always leave.
    if tier == HOST:
        return words[r, HELD] == 0
    return words[r, CHILD] < 0


@_part
def _sink(heap, length, at, high, low, entry):
    while True:
        down = 2 * at + 1
        if down >= length:
            break
        if down + 1 < length and (
            heap[down + 1, 0] < heap[down, 0]
            or (heap[down + 1, 0] == heap[down, 0] and heap[down + 1, 1] < heap[down, 1])
        ):
            down += 1
        if high < heap[down, 0] or (high == heap[down, 0] and low <= heap[down, 1]):
            break
        heap[at, 0], heap[at, 1], heap[at, 2] = heap[down, 0], heap[down, 1], heap[down, 2]
        at = down
    heap[at, 0], heap[at, 1], heap[at, 2] = high, low, entry


@_part
def _rise(heap, at, high, low, entry):
    while at > 0:
        up = (at - 1) >> 1
        if heap[up, 0] < high or (heap[up, 0] == high and heap[up, 1] <= low):
            break
        heap[at, 0], heap[at, 1], heap[at, 2] = heap[up, 0], heap[up, 1], heap[up, 2]
        at = up
    heap[at, 0], heap[at, 1], heap[at, 2] = high, low, entry
    return at


@_part
def _counts(words, entry, tier):
    """Whether an entry is the one of a page that may leave, or might have once. Where a page was entered four times
    since, one that is not may be taken for it, which costs a look."""
    r = entry & 0xFFFFFFFF
    return _of(words, r, tier) & QUEUED != 0 and _entry_of(words, r, tier) == entry


@_part
def _remove(heaps, meta, tier, at):
    """An entry leaves the heap, wherever it is."""
    heap, block = heaps[tier], TIER_BLOCK + BLOCK * tier
    meta[block + HEAP] -= 1
    last = meta[block + HEAP]
    if at < last:
        high, low, entry = heap[last, 0], heap[last, 1], heap[last, 2]
        if _rise(heap, at, high, low, entry) == at:
            _sink(heap, last, at, high, low, entry)


@_part
def _compact(words, longs, heaps, meta, tier):
    """Leave one entry, with its rank of now, for each page that may leave. Takes as long as there are entries."""
    heap, block, kept = heaps[tier], TIER_BLOCK + BLOCK * tier, 0
    for at in range(meta[block + HEAP]):
        entry = heap[at, 2]
        if _counts(words, entry, tier):
            r = entry & 0xFFFFFFFF
            _clear(words, r, tier, QUEUED)
            if _may_leave(words, meta, r, tier):
                heap[kept, 2] = entry
                kept += 1
    meta[block + HEAP] = meta[block + IN_HEAP] = kept
    for at in range(kept):
        r = heap[at, 2] & 0xFFFFFFFF
        _set(words, r, tier, QUEUED)
        heap[at, 0], heap[at, 1] = _rank(words, longs, meta, r, tier)
    for at in range(kept // 2 - 1, -1, -1):
        _sink(heap, kept, at, heap[at, 0], heap[at, 1], heap[at, 2])


@_part
def _sweep(words, heaps, meta, tier):
    """Look at a few entries more, and take out those that count no more: they cost room, and no push looks at many."""
    block = TIER_BLOCK + BLOCK * tier
    for _ in range(_SWEPT_AT_ONCE):
        at = meta[block + SWEPT]
        if at >= meta[block + HEAP]:
            at = 0
        if _counts(words, heaps[tier, at, 2], tier):
            at += 1
        else:
            _remove(heaps, meta, tier, at)
        meta[block + SWEPT] = at


@_part
def _push(words, longs, heaps, meta, r, tier):
    block = TIER_BLOCK + BLOCK * tier
    queued = meta[block + IN_HEAP]
    if meta[block + HEAP] > 64 + queued + (queued >> 2):
        _sweep(words, heaps, meta, tier)
        if meta[block + HEAP] == heaps.shape[1]:  # there is room for half as many again as there are pages
            _compact(words, longs, heaps, meta, tier)
    shift = ENTERED + ENTERED_BITS * tier
    time = (words[r, FLAGS] >> shift) + 1 & 3
    words[r, FLAGS] = words[r, FLAGS] & ~(3 << shift) | time << shift
    at = meta[block + HEAP]
    meta[block + HEAP] += 1
    high, low = _rank(words, longs, meta, r, tier)
    _rise(heaps[tier], at, high, low, _entry_of(words, r, tier))
    if not _of(words, r, tier) & QUEUED:
        _set(words, r, tier, QUEUED)
        meta[block + IN_HEAP] += 1


@_part
def _take_out(words, meta, r, tier):
    """Its entry counts no more."""
    if _of(words, r, tier) & QUEUED:
        _clear(words, r, tier, QUEUED)
        meta[TIER_BLOCK + BLOCK * tier + IN_HEAP] -= 1


@_part
def _offer(words, longs, heaps, meta, r):
    """What may leave has an entry from now on."""
    for tier in range(meta[TIER_COUNT]):
        if not _of(words, r, tier) & QUEUED and _may_leave(words, meta, r, tier):
            _push(words, longs, heaps, meta, r, tier)


@_part
def _peek(words, longs, heaps, meta, tier):
    """The row of the next victim; -1: none."""
    heap, block = heaps[tier], TIER_BLOCK + BLOCK * tier
    while meta[block + HEAP] > 0:
        entry = heap[0, 2]
        r = entry & 0xFFFFFFFF
        alive = _counts(words, entry, tier)
        if alive and _may_leave(words, meta, r, tier):
            high, low = _rank(words, longs, meta, r, tier)
            if high < heap[0, 0] or (high == heap[0, 0] and low <= heap[0, 1]):
                return r
            _sink(heap, meta[block + HEAP], 0, high, low, entry)
        else:
            if alive:
                _take_out(words, meta, r, tier)
            _remove(heaps, meta, tier, 0)
    return np.int64(-1)


# ---- single pages ----


@_part
def _note(meta, notes, what, which, whose):
    at = meta[NOTES]
    notes[at, 0], notes[at, 1], notes[at, 2] = what, which, whose
    meta[NOTES] = at + 1


@_part
def kind_of(words, meta, r):
    """As what a page is counted, in bits: its whole copies by tier, and whether it is pinned."""
    kind, tiers = 0, meta[TIER_COUNT]
    for tier in range(tiers):
        if _of(words, r, tier) & WHOLE:
            kind |= 1 << tier
    if words[r, PINS] > 0 or _kept(words, r):
        kind |= 1 << tiers
    return kind


@_part
def _changed(words, meta, r):
    """It has gained or lost a whole copy or its last pin."""
    meta[CHANGES] += 1
    kind, before = kind_of(words, meta, r), words[r, FLAGS] >> KIND & KINDS
    if kind != before and not words[r, FLAGS] & DROPPED:
        meta[COUNTS + before] -= 1
        meta[COUNTS + kind] += 1
        words[r, FLAGS] = (words[r, FLAGS] & ~(KINDS << KIND)) | kind << KIND


@_part
def _note_held(words, longs, heaps, meta, r):
    """Tell the pages before this one whether it, or what is behind it, is in host memory or pinned; as far up as that
    is new to them."""
    while not words[r, FLAGS] & DROPPED:
        held = _of(words, r, HOST) & (BEGUN | WHOLE) != 0 or words[r, PINS] > 0 or words[r, HELD] > 0
        if held == (words[r, FLAGS] & IS_HELD != 0):
            return
        words[r, FLAGS] = words[r, FLAGS] ^ IS_HELD
        parent = words[r, PARENT]
        if words[parent, DEPTH] == 0:
            return
        words[parent, HELD] += 1 if held else -1
        if _of(words, parent, HOST) & WHOLE:
            _offer(words, longs, heaps, meta, parent)
        r = parent


@_part
def _free_row(words, meta, r):
    """A row that nothing refers to any more may be another page's; so may that of a root, after its last page's."""
    space = words[r, SPACE]
    if words[r, PINS] == 0 and words[r, CHILD] < 0 and not words[r, FLAGS] & PENDING:
        _give_row_back(words, meta, r)
        if space != r:
            words[space, PINS] -= 1
            if words[space, PINS] == 0 and words[space, FLAGS] & (DROPPED | PENDING) == DROPPED:
                _give_row_back(words, meta, space)


@_part
def _give_row_back(words, meta, r):
    words[r, FLAGS] = 0
    words[r, GENERATION] = words[r, GENERATION] + 1 & _LOW  # weeks of turnover come round
    words[r, NEXT] = meta[FREE]
    meta[FREE] = r
    meta[FREE_ROWS] += 1


@_part
def _take_row(words, meta):
    """A row that nobody has. There is one."""
    r = meta[FREE]
    if r >= 0:
        meta[FREE] = words[r, NEXT]
        meta[FREE_ROWS] -= 1
    else:
        r = meta[HIGH]
        meta[HIGH] = r + 1
    return r


@_part
def _pin(words, longs, heaps, meta, r):
    words[r, PINS] += 1
    if words[r, PINS] == 1:
        _note_held(words, longs, heaps, meta, r)
        if not _kept(words, r):
            meta[PINNED] += 1
            _changed(words, meta, r)


@_part
def _unpin(words, longs, heaps, meta, notes, r):
    words[r, PINS] -= 1
    if words[r, PINS]:
        return
    if words[r, FLAGS] & LANDED:
        words[r, FLAGS] = words[r, FLAGS] ^ LANDED
        _note(meta, notes, LEFT_LANDING, r, 0)
    if not _kept(words, r):
        meta[PINNED] -= 1
    if words[r, FLAGS] & DROPPED:
        _free_host(words, longs, heaps, meta, notes, r)
        _free_row(words, meta, r)
    else:
        _note_held(words, longs, heaps, meta, r)
        _changed(words, meta, r)
        _offer(words, longs, heaps, meta, r)


@_part
def _entered(words, longs, heaps, meta, r, tier):
    """There is a whole copy now."""
    block = TIER_BLOCK + BLOCK * tier
    _clear(words, r, tier, BEGUN | GAP)
    _set(words, r, tier, WHOLE)
    meta[block + WHOLE_PAGES] += 1
    meta[block + WHOLE_BYTES] += _size(words, r, tier)
    _changed(words, meta, r)
    if meta[NEAR] >> tier & 1 and _of(words, r, HOST) & QUEUED:
        _push(words, longs, heaps, meta, r, HOST)  # the one thing by which a rank falls
    _offer(words, longs, heaps, meta, r)
    parent = words[r, PARENT]
    if _durable(meta, tier) and words[parent, DEPTH] > 0:
        words[parent, meta[block + BEHIND]] += 1
        _take_out(words, meta, parent, tier)


@_part
def _forget(words, longs, heaps, meta, notes, r, tier):
    """It has a whole copy there no more."""
    block = TIER_BLOCK + BLOCK * tier
    _take_out(words, meta, r, tier)
    _clear(words, r, tier, WHOLE)
    meta[block + WHOLE_PAGES] -= 1
    meta[block + WHOLE_BYTES] -= _size(words, r, tier)
    _note(meta, notes, tier, words[r, PLACES + tier], r)
    words[r, PLACES + tier] = -1
    if tier == HOST:
        _note_held(words, longs, heaps, meta, r)
    _changed(words, meta, r)
    parent = words[r, PARENT]
    if _durable(meta, tier) and parent >= 0 and words[parent, DEPTH] > 0:
        words[parent, meta[block + BEHIND]] -= 1
        if not _behind(words, meta, parent, tier):
            _clear(words, parent, tier, GAP)
        _offer(words, longs, heaps, meta, parent)


@_part
def _free_host(words, longs, heaps, meta, notes, r):
    """A page that has left needs its host slot no more, if it has one."""
    has = _of(words, r, HOST)
    if has & WHOLE:
        _forget(words, longs, heaps, meta, notes, r, HOST)
    elif has & BEGUN:
        _clear(words, r, HOST, BEGUN)
        meta[TIER_BLOCK + COMING_BYTES] -= _size(words, r, HOST)
        _note(meta, notes, HOST, words[r, PLACES], r)
        words[r, PLACES] = -1


@_part
def _let_go(words, longs, heaps, meta, r):
    words[r, FLAGS] = words[r, FLAGS] & ~KEEP
    if not _kept(words, r):
        meta[KEPT_PAGES] -= 1
        _kept_changed(words, longs, heaps, meta, r)
        _child_let_go(words, longs, heaps, meta, words[r, PARENT])


@_part
def _child_let_go(words, longs, heaps, meta, r):
    """A child of this page, if it is one, is kept no more."""
    while r >= 0 and words[r, DEPTH] > 0:
        words[r, KEPT] -= 1
        if _kept(words, r):
            return
        meta[KEPT_PAGES] -= 1
        _kept_changed(words, longs, heaps, meta, r)
        r = words[r, PARENT]


@_part
def _kept_changed(words, longs, heaps, meta, r):
    if not words[r, PINS]:
        meta[PINNED] += 1 if _kept(words, r) else -1
    if not words[r, FLAGS] & DROPPED:
        _changed(words, meta, r)
        _offer(words, longs, heaps, meta, r)


@_part
def _drop_one(words, longs, table, heaps, meta, notes, r):
    """A page leaves with what is its own. What is behind it, if anything is, finds it dropped."""
    space, parent = words[r, SPACE], words[r, PARENT]
    if not words[r, FLAGS] & UNHASHED:
        _hash_out(words, longs, table, r)
    meta[CHANGES] += 1
    meta[COUNTS + (words[r, FLAGS] >> KIND & KINDS)] -= 1
    meta[PAGES] -= 1
    words[space, ROOT_PAGES] -= 1
    meta[FIRST] -= words[parent, DEPTH] == 0
    meta[DEPTHS + min(words[r, DEPTH], DEEP)] -= 1
    while meta[DEEPEST] > 0 and meta[DEPTHS + meta[DEEPEST]] == 0:
        meta[DEEPEST] -= 1
    words[r, FLAGS] = words[r, FLAGS] | DROPPED
    for tier in range(meta[TIER_COUNT]):
        _clear(words, r, tier, GAP)
        _take_out(words, meta, r, tier)
    if words[r, FLAGS] & TOLD:
        _note(meta, notes, TOLD_LEFT, r, 0)
    if words[r, FLAGS] & KEEP:
        _note(meta, notes, LOST_PIN, r, words[r, GENERATION])
        _let_go(words, longs, heaps, meta, r)
    if _kept(words, r):  # by a page behind it, which leaves later
        _child_let_go(words, longs, heaps, meta, parent)
    for tier in range(1, meta[TIER_COUNT]):
        if _of(words, r, tier) & WHOLE:
            _forget(words, longs, heaps, meta, notes, r, tier)
    if words[r, PREV] >= 0:
        words[words[r, PREV], NEXT] = words[r, NEXT]
    else:
        words[parent, CHILD] = words[r, NEXT]
    if words[r, NEXT] >= 0:
        words[words[r, NEXT], PREV] = words[r, PREV]
    words[r, PARENT] = -1
    if words[parent, DEPTH] > 0:
        if words[r, FLAGS] & IS_HELD:
            words[parent, HELD] -= 1
        if not words[parent, FLAGS] & DROPPED:
            _note_held(words, longs, heaps, meta, parent)
            _offer(words, longs, heaps, meta, parent)
    if words[r, PINS] == 0:
        _free_host(words, longs, heaps, meta, notes, r)


@_part
def _drop(words, longs, table, heaps, meta, notes, r):
    """A page leaves. What is behind it is hidden from now on, and leaves by `leave`."""
    _drop_one(words, longs, table, heaps, meta, notes, r)
    if words[r, CHILD] >= 0:
        words[r, FLAGS] = words[r, FLAGS] | PENDING
        meta[ROOTS] += 1
        _note(meta, notes, LEAVES, r, words[r, GENERATION])
    else:
        _free_row(words, meta, r)


@_part
def _lose(words, longs, table, heaps, meta, notes, r, tier):
    """See `PageTable.lose`."""
    has = _of(words, r, tier)
    if not has & (BEGUN | WHOLE) or words[r, FLAGS] & DROPPED or (tier != HOST and not has & WHOLE):
        return False
    in_host = _of(words, r, HOST) & (BEGUN | WHOLE) != 0
    if not _elsewhere(words, r, tier) and (tier == HOST or not in_host):
        _drop(words, longs, table, heaps, meta, notes, r)
        return True
    if tier == HOST and (words[r, PINS] > 0 or not has & WHOLE):
        return False
    _forget(words, longs, heaps, meta, notes, r, tier)
    if _durable(meta, tier) and _behind(words, meta, r, tier):
        _set(words, r, tier, GAP)
    _offer(words, longs, heaps, meta, r)
    return True


@_part
def _begin(words, longs, heaps, meta, r, tier, place):
    _set(words, r, tier, BEGUN)
    words[r, PLACES + tier] = place
    meta[TIER_BLOCK + BLOCK * tier + COMING_BYTES] += _size(words, r, tier)
    _pin(words, longs, heaps, meta, r)


@_part
def _end(words, longs, table, heaps, meta, notes, r, tier, whole, place):
    dropped = words[r, FLAGS] & DROPPED != 0
    kept = whole and not dropped
    if tier != HOST or not dropped:  # a host slot is there as long as the page is pinned
        meta[TIER_BLOCK + BLOCK * tier + COMING_BYTES] -= _size(words, r, tier)
        words[r, PLACES + tier] = place
    if kept:
        _entered(words, longs, heaps, meta, r, tier)
    elif not dropped:  # what was begun has come to nothing
        _clear(words, r, tier, BEGUN)
        words[r, PLACES + tier] = -1
        if tier == HOST:
            _note(meta, notes, HOST, place, r)
        if _durable(meta, tier) and _behind(words, meta, r, tier):
            _set(words, r, tier, GAP)  # they were written ahead of it
        if not words[r, TIERS] & ANY_COPY:
            _drop(words, longs, table, heaps, meta, notes, r)
    elif tier != HOST:
        _clear(words, r, tier, BEGUN)
        words[r, PLACES + tier] = -1
    _unpin(words, longs, heaps, meta, notes, r)
    return kept


@_part
def _doublings(pages):
    """How many bits a number has."""
    bits = 0
    while pages > 0:
        bits, pages = bits + 1, pages >> 1
    return bits


@_part
def _enter(words, longs, table, meta, parent, k0, k1, k2, k3, now):
    """A new page without copies behind a page, or behind the root of its namespace. There is a row for it."""
    space = words[parent, SPACE]
    leaving = _find(words, longs, table, space, k0, k1, k2, k3)
    if leaving >= 0:  # the new one comes after its own parent
        _hash_out(words, longs, table, leaving)
        words[leaving, FLAGS] = words[leaving, FLAGS] | UNHASHED
    r = _take_row(words, meta)
    generation = words[r, GENERATION]
    for word in range(PARENT, words.shape[1]):
        words[r, word] = 0
    longs[r, 0], longs[r, 1], longs[r, 2], longs[r, 3], longs[r, LAST] = k0, k1, k2, k3, now
    words[r, GENERATION], words[r, SPACE], words[r, FLAGS] = generation, space, USED
    words[r, PARENT], words[r, CHILD], words[r, PREV], words[r, NEXT] = parent, -1, -1, words[parent, CHILD]
    if words[parent, CHILD] >= 0:
        words[words[parent, CHILD], PREV] = r
    words[parent, CHILD] = r
    depth = words[parent, DEPTH] + 1
    words[r, DEPTH], words[r, USE] = depth, 1 << USES_AT | _doublings(depth)
    for tier in range(meta[TIER_COUNT]):
        words[r, PLACES + tier] = -1
    _hash_in(words, longs, table, r)
    meta[CHANGES] += 1
    meta[PAGES] += 1
    words[space, ROOT_PAGES] += 1
    words[space, PINS] += 1
    meta[COUNTS] += 1
    meta[FIRST] += depth == 1
    meta[DEPTHS + min(depth, DEEP)] += 1
    meta[DEEPEST] = max(meta[DEEPEST], min(depth, DEEP))
    return r


@_part
def _use(words, longs, r, now, reach):
    if longs[r, LAST] != now:
        longs[r, LAST] = max(longs[r, LAST], now)
        uses, doublings = words[r, USE] >> USES_AT, words[r, USE] & DOUBLINGS
        words[r, USE] = min(uses + 1, MOST_USES) << USES_AT | max(doublings, _doublings(reach))


@_part
def _refresh(words, longs, r, now):
    while r >= 0 and words[r, DEPTH] > 0 and longs[r, LAST] < now:
        longs[r, LAST] = now
        r = words[r, PARENT]


# ---- what Python calls: one page ----


@_entry("int64", "int64, int64, int64, int64, int64")
def find(words, longs, table, heaps, meta, notes, space, k0, k1, k2, k3):
    """The handle of a page that is not hidden; -1: none. No lock is needed."""
    r = _find(words, longs, table, space, k0, k1, k2, k3)
    return np.int64(-1) if r < 0 or _hidden(words, meta, r) else _handle(words, r)


@_entry("int64", "int64")
def new_root(words, longs, table, heaps, meta, notes, length):
    """The root of a namespace whose pages have `length` bytes."""
    r = _take_row(words, meta)
    for word in range(PARENT, words.shape[1]):
        if word != GENERATION:
            words[r, word] = 0
    words[r, SPACE], words[r, FLAGS], words[r, CHILD] = r, USED, -1
    words[r, ROOT_PAGES], words[r, ROOT_LENGTH] = 0, length
    return r


@_entry("int64", "int64, int64, int64, int64, int64, int64")
def enter(words, longs, table, heaps, meta, notes, parent, k0, k1, k2, k3, now):
    return _handle(words, _enter(words, longs, table, meta, parent, k0, k1, k2, k3, now))


@_entry("void", "int64")
def pin(words, longs, table, heaps, meta, notes, r):
    _pin(words, longs, heaps, meta, r)


@_entry("void", "int64")
def unpin(words, longs, table, heaps, meta, notes, r):
    _unpin(words, longs, heaps, meta, notes, r)


@_entry("void", "int64, int64, int64")
def begin(words, longs, table, heaps, meta, notes, r, tier, place):
    _begin(words, longs, heaps, meta, r, tier, place)


@_entry("boolean", "int64, int64, boolean, int64")
def end(words, longs, table, heaps, meta, notes, r, tier, whole, place):
    return _end(words, longs, table, heaps, meta, notes, r, tier, whole, place)


@_entry("boolean", "int64, int64")
def lose(words, longs, table, heaps, meta, notes, r, tier):
    return _lose(words, longs, table, heaps, meta, notes, r, tier)


@_entry("void", "int64")
def drop(words, longs, table, heaps, meta, notes, r):
    _drop(words, longs, table, heaps, meta, notes, r)


@_entry("void", "int64, int64, int64")
def use(words, longs, table, heaps, meta, notes, r, now, reach):
    _use(words, longs, r, now, reach)


@_entry("void", "int64, int64")
def refresh(words, longs, table, heaps, meta, notes, r, now):
    _refresh(words, longs, r, now)


@_entry("void", "int64")
def keep(words, longs, table, heaps, meta, notes, r):
    was = _kept(words, r)
    words[r, FLAGS] = words[r, FLAGS] | KEEP
    while not was:
        meta[KEPT_PAGES] += 1
        _kept_changed(words, longs, heaps, meta, r)
        r = np.int64(words[r, PARENT])
        if r < 0 or words[r, DEPTH] == 0:
            return
        was = _kept(words, r)
        words[r, KEPT] += 1


@_entry("void", "int64")
def let_go(words, longs, table, heaps, meta, notes, r):
    _let_go(words, longs, heaps, meta, r)


@_entry("int64", "int64")
def victim(words, longs, table, heaps, meta, notes, tier):
    """The handle of the page that leaves this tier next; -1: none may."""
    r = _peek(words, longs, heaps, meta, tier)
    return np.int64(-1) if r < 0 else _handle(words, r)


@_entry("int64", "int64")
def count_children(words, longs, table, heaps, meta, notes, r):
    found, child = 0, words[r, CHILD]
    while child >= 0:
        found += 1
        child = words[child, NEXT]
    return found


@_entry("void", "int64")
def reorder(words, longs, table, heaps, meta, notes, tier):
    """Every page gets the place among those that leave that it has by now."""
    _compact(words, longs, heaps, meta, tier)


# ---- what Python calls: many pages ----


@_entry("int64", "int64, int64[:,::1], int64[::1]")
def find_chain(words, longs, table, heaps, meta, notes, space, keys, out):
    """The rows of the pages of a chain, as far as they are held and not hidden; how many. No lock is needed."""
    before = np.int64(-1)
    for at in range(keys.shape[0]):
        r = _find(words, longs, table, space, keys[at, 0], keys[at, 1], keys[at, 2], keys[at, 3])
        if r < 0 or words[r, FLAGS] & DROPPED or _hidden_behind(words, meta, r, before, False):
            return at
        out[at] = before = r
    return keys.shape[0]


@_entry("boolean", "int64")
def has_left(words, longs, table, heaps, meta, notes, r):
    """See `_has_left`."""
    return _has_left(words, meta, r, _hidden(words, meta, r))


@_entry("int64", "int64, int64[:,::1]")
def probe(words, longs, table, heaps, meta, notes, space, keys):
    """How many pages of a chain, from the first on, have a whole copy somewhere. No lock is needed."""
    before = np.int64(-1)
    for at in range(keys.shape[0]):
        r = _find(words, longs, table, space, keys[at, 0], keys[at, 1], keys[at, 2], keys[at, 3])
        if r < 0 or words[r, FLAGS] & DROPPED or kind_of(words, meta, r) & ((1 << meta[TIER_COUNT]) - 1) == 0:
            return at
        if _hidden_behind(words, meta, r, before, False):
            return at
        before = r
    return keys.shape[0]


@_entry("int64", "int64, int64[:,::1]")
def last_held(words, longs, table, heaps, meta, notes, space, keys):
    """The last of these pages that has a whole copy somewhere; -1: none. No lock is needed."""
    for at in range(keys.shape[0] - 1, -1, -1):
        r = _find(words, longs, table, space, keys[at, 0], keys[at, 1], keys[at, 2], keys[at, 3])
        if r < 0 or words[r, FLAGS] & DROPPED or kind_of(words, meta, r) & ((1 << meta[TIER_COUNT]) - 1) == 0:
            continue
        if not _hidden(words, meta, r):
            return np.int64(at)
    return np.int64(-1)


@_entry("void", "int64[::1], int64")
def refresh_all(words, longs, table, heaps, meta, notes, rows, now):
    for r in rows:
        _refresh(words, longs, r, now)


@_entry("int64", "int64[::1], int64, boolean, boolean[::1]")
def end_all(words, longs, table, heaps, meta, notes, rows, tier, whole, kept):
    """What was on its way to a tier has arrived, or will not, where it was begun; how many pages have come. `kept`:
    which. One that has come to a durable tier is worth nothing there without the page before it, there or on its
    way."""
    come = 0
    for at in range(len(rows)):
        r = rows[at]
        parent = words[r, PARENT]
        alone = _durable(meta, tier) and parent >= 0 and words[parent, DEPTH] > 0
        if alone:
            alone = _of(words, parent, tier) & (BEGUN | WHOLE) == 0
        place = words[r, PLACES + tier]
        kept[at] = _end(words, longs, table, heaps, meta, notes, r, tier, whole and not alone, place)
        come += kept[at]
    return come


@_entry("void", "int64[:,::1], int64, int64[::1]")
def writable(words, longs, table, heaps, meta, notes, pages, tier, found):
    """Which of these pages, by row and generation, could be written to a tier now, one after the other. `found`: 1
    those, 2 those that lack the page before them in a durable tier, 0 the others."""
    copy = (BEGUN | WHOLE) << (BITS * tier)
    before, hidden = np.int64(-1), False
    for at in range(pages.shape[0]):
        r = pages[at, 0]
        found[at] = 0
        if words[r, GENERATION] != pages[at, 1]:
            continue
        hidden = _hidden_behind(words, meta, r, before, hidden)
        before = r
        # What has left must not be written: it would lie on devices that have been told of a flush before.
        if _has_left(words, meta, r, hidden):
            continue
        if words[r, TIERS] & copy or not words[r, TIERS] & WHOLE:
            continue
        found[at] = 1
        parent = words[r, PARENT]
        if _durable(meta, tier) and words[parent, DEPTH] > 0 and not words[parent, TIERS] & copy:
            found[at] = 2
            for other in range(at):
                if found[other] == 1 and pages[other, 0] == parent:
                    found[at] = 1


@_entry("int64", "int64, int64, int64[::1]")
def lacking_before(words, longs, table, heaps, meta, notes, r, tier, out):
    """Of the pages before this one, from the last on that has a copy in a tier, whole or on its way, the first ones, in
    order, as handles: as many as `out` has room for. How many."""
    copy = (BEGUN | WHOLE) << (BITS * tier)
    lacking, at = 0, np.int64(words[r, PARENT])
    while at >= 0 and words[at, DEPTH] > 0 and not words[at, TIERS] & copy:
        lacking += 1
        at = np.int64(words[at, PARENT])
    at = np.int64(words[r, PARENT])
    for place in range(lacking - 1, -1, -1):
        if place < len(out):
            out[place] = _handle(words, at)
        at = np.int64(words[at, PARENT])
    return min(lacking, len(out))


@_entry("void", "int64[::1], int64, int64[::1]")
def begin_all(words, longs, table, heaps, meta, notes, rows, tier, places):
    """Bytes of pages begin to arrive at these places of a tier."""
    for at in range(len(rows)):
        _begin(words, longs, heaps, meta, rows[at], tier, places[at])


@_entry("void", "int64[::1]")
def pin_all(words, longs, table, heaps, meta, notes, rows):
    for r in rows:
        _pin(words, longs, heaps, meta, r)


@_entry("void", "int64[::1]")
def unpin_all(words, longs, table, heaps, meta, notes, rows):
    for r in rows:
        _unpin(words, longs, heaps, meta, notes, r)


@_entry("void", "int64[::1], int64, int64")
def use_all(words, longs, table, heaps, meta, notes, rows, now, reach):
    for r in rows:
        _use(words, longs, r, now, reach)


@_entry("int64", "int64, int64, int64")
def evict(words, longs, table, heaps, meta, notes, tier, count, before):
    """Up to `count` victims that were last used before a logical time give their copies there up; how many."""
    for done in range(count):
        r = _peek(words, longs, heaps, meta, tier)
        if r < 0 or longs[r, LAST] >= before:
            return done
        _lose(words, longs, table, heaps, meta, notes, r, tier)
    return count


@_entry("int64", "int64, int64[:,::1], int64[::1], int64, int64[::1]")
def take_in(words, longs, table, heaps, meta, notes, parent, keys, slots, now, out):
    """New pages, one behind the other after a page or a root, whose bytes begin to arrive in slots of host memory; ends
    before one that is held. How many; `out`: their handles."""
    space = words[parent, SPACE]
    before, hidden = np.int64(-1), False
    for at in range(keys.shape[0]):
        found = np.int64(_find(words, longs, table, space, keys[at, 0], keys[at, 1], keys[at, 2], keys[at, 3]))
        if found >= 0:
            hidden = _hidden_behind(words, meta, found, before, hidden)
            before = found
            if not hidden:
                return at
        r = _enter(words, longs, table, meta, parent, keys[at, 0], keys[at, 1], keys[at, 2], keys[at, 3], now)
        _begin(words, longs, heaps, meta, r, HOST, slots[at])
        out[at], parent = _handle(words, r), r
    return keys.shape[0]


@_entry("int64", "int64, int64, int64, int64[::1]")
def leave(words, longs, table, heaps, meta, notes, root, start, steps, out):
    """What is behind `root`, which is dropped, leaves, ends first, up to `steps` of it, from `start` on, which is
    behind it or itself. `out`: where to go on, -1: nothing is left; how many have left is the answer."""
    left, at = 0, start
    while True:
        while words[at, CHILD] >= 0:
            at = np.int64(words[at, CHILD])
        if at == root:
            break
        if left == steps:
            out[0] = _handle(words, at)
            return left
        parent = np.int64(words[at, PARENT])
        _drop_one(words, longs, table, heaps, meta, notes, at)
        _free_row(words, meta, at)
        left += 1
        at = parent
    out[0] = -1
    words[root, FLAGS] = words[root, FLAGS] & ~PENDING
    if words[root, DEPTH] > 0:
        meta[ROOTS] -= 1
    _free_row(words, meta, root)
    return left


@_entry("int64", "int64, int64, int64[::1]")
def coldest(words, longs, table, heaps, meta, notes, tier, count, out):
    """Up to `count` pages in the order in which they would leave, as handles; they stay. How many."""
    found = 0
    while found < count:
        r = _peek(words, longs, heaps, meta, tier)
        if r < 0:
            break
        out[found] = _handle(words, r)
        found += 1
        _take_out(words, meta, r, tier)
        _remove(heaps, meta, tier, 0)
    for at in range(found):
        _push(words, longs, heaps, meta, out[at] & 0xFFFFFFFF, tier)
    return found


@_entry("int64", "int64, int64, int64[:,::1], int64[::1], int64[::1], int64[::1]")
def recover(words, longs, table, heaps, meta, notes, space, tier, chains, places, times, out):
    """Pages that a durable tier has kept, each with the key of the one before it (zeros: none) behind its own in
    `chains`, parents first. `out`: places of those that nothing in that tier leads to; how many. Behind them, at its
    end, how many were looked at: the next one is just coming in for the first time, with no other copy until then."""
    lost = 0
    out[chains.shape[0]] = chains.shape[0]
    for at in range(chains.shape[0]):
        parent = np.int64(space)
        if chains[at, 4] != 0 or chains[at, 5] != 0 or chains[at, 6] != 0 or chains[at, 7] != 0:
            parent = np.int64(
                _find(words, longs, table, space, chains[at, 4], chains[at, 5], chains[at, 6], chains[at, 7])
            )
            if parent < 0 or not _of(words, parent, tier) & WHOLE:  # host memory may have it, which a restart empties
                out[lost] = places[at]
                lost += 1
                continue
        k0, k1, k2, k3 = chains[at, 0], chains[at, 1], chains[at, 2], chains[at, 3]
        r = np.int64(_find(words, longs, table, space, k0, k1, k2, k3))
        if r < 0:
            r = np.int64(_enter(words, longs, table, meta, parent, k0, k1, k2, k3, times[at]))
        elif not words[r, TIERS] & ANY_WHOLE:
            out[chains.shape[0]] = at
            break
        if _of(words, r, tier) & (BEGUN | WHOLE):
            out[lost] = places[at]
            lost += 1
            continue
        words[r, FLAGS] = words[r, FLAGS] | RECOVERED
        words[r, PLACES + tier] = places[at]
        _entered(words, longs, heaps, meta, r, tier)
    return lost


@_entry("void", "int64")
def rehash(words, longs, table, heaps, meta, notes, high):
    """Every page that can be found is in a new, empty hash table."""
    for r in range(high):
        flags = words[r, FLAGS]
        if flags & USED and not flags & (DROPPED | UNHASHED) and words[r, DEPTH] > 0:
            _hash_in(words, longs, table, r)
