"""The cached prefixes that a donor keeps: those that its requests have used lately.

SGLang counts what may be evicted, not what of it is in use again and again, and its tree may be one of Rust, which
gives no list of its nodes. So what is used lately is counted while it is used: `SwiftRadixCache` tells of every match,
insertion, lock and eviction. All of it is on the scheduler's thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from swift_tiers.radix_tiering.lending.donation.used_paths import PathNode, UsedPaths

from ..tell.guard import never_raises

#: Leaves that are passed over, being kept, before an eviction for others gives up: SGLang offers the least recently
#: used first, so that those behind them are kept, too.
MOST_PASSED_OVER = 64


def _no_node() -> int | None:
    return None


class KeptPrefixes:
    """What was used within the last `seconds`, is still in the tree, and is locked by nobody."""

    def __init__(
        self,
        cache: Any,
        seconds: float,
        stack: Any,
        clock: Callable[[], float] = time.monotonic,
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        """`stack`: whose events say what went wrong here. `failed`: called when something did: what is kept may not be
        what it should be. `clock`: seconds; where there are several ranks, the same on all of them."""
        self.stack = stack
        self.failed = failed
        self._cache = cache
        self._clock = clock
        self._paths = UsedPaths(seconds, self._path)
        self._passed_over: int | None = None  # leaves, while something is evicted for others

    @never_raises(lambda: 0)
    def tokens(self) -> int:
        """That are kept now. What is locked is in use, and counts elsewhere."""
        return max(0, self._paths.tokens(self._clock()) - int(self._cache.full_protected_size()))

    @never_raises(lambda: 0)
    def wait_for(self, node: int) -> int:
        """A waiting request will use all as far as this node: the tokens of that which are kept, or locked, so that
        they need no room of their own; 0 if the node has left."""
        end = self._paths.end_of(node)
        if end is None:
            return 0
        self._paths.use(node, self._clock())
        return end

    # ---- evictions for others ----

    @contextmanager
    def sparing(self) -> Iterator[None]:
        """Within it what is kept is not evicted."""
        self._passed_over = 0
        self._paths.expire(self._clock())
        try:
            yield
        finally:
            self._passed_over = None

    def gives_up(self) -> bool:
        """Whether too many leaves have been passed over."""
        return self._passed_over is not None and self._passed_over >= MOST_PASSED_OVER

    def spares(self, node: int) -> bool:
        """Whether a leaf that is about to be evicted stays."""
        if self._passed_over is None or node not in self._paths:
            return False
        self._passed_over += 1
        return True

    # ---- told by the tree ----

    @never_raises(_no_node)
    def before_walk(self, key: Any) -> int | None:
        """A match or an insertion of this key begins: the node that it will split, if that counts here."""
        matched, node, end = self._cache.tree_core.match_full_device_prefix(key)
        return node if matched < end and node in self._paths else None

    @never_raises(lambda: None)
    def after_walk(self, split: int | None, node: int | None) -> None:
        """It has ended at `node`; None: it was broken off."""
        if split is not None:
            self._paths.split(split)
        if node is not None:
            self._paths.use(node, self._clock())

    @never_raises(lambda: None)
    def locked(self, node: int) -> None:
        self._paths.hold(node)

    @never_raises(lambda: None)
    def unlocked(self, node: int) -> None:
        self._paths.let_go(node, self._clock())

    @never_raises(lambda: None)
    def evicted(self, node: int) -> None:
        """A leaf has left the tree."""
        self._paths.lost(node)

    @never_raises(lambda: None)
    def cleared(self) -> None:
        """The tree is empty."""
        self._paths.clear()

    def _path(self, node: int) -> Sequence[PathNode]:
        try:
            (path,) = self._cache.tree_core.collect_path_info((node,))
        except KeyError:  # it has left
            return ()
        return [PathNode(info.node_id, info.parent_id, info.path_start, info.path_end) for info in path]
