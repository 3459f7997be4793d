"""SGLang's unified radix tree that tells a donor's `KeptPrefixes` of all that happens in it."""

from __future__ import annotations

from typing import Any

from sglang.srt.mem_cache.base_prefix_cache import EvictParams
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from ..build.kept_prefixes import KeptPrefixes


class KeepingRadixCache(UnifiedRadixCache):
    """As SGLang's where nothing is kept."""

    #: None: nothing is lent, or nothing is kept.
    kept: KeptPrefixes | None = None

    def evict_for_others(self, tokens: int) -> None:
        """Free so many tokens of cached prefixes that are not kept, least valuable first; or all there are."""
        if self.kept is None:
            self.evict(EvictParams(num_tokens=tokens))
            return
        with self.kept.sparing():
            self._evict(EvictParams(num_tokens=tokens), allocation_reclaim_satisfied=self.kept.gives_up)

    def evict_leaf(self, node_id: Any, tracker: Any) -> Any:
        """SGLang evicts one leaf of the device."""
        return super()._evict_device_leaf(node_id, tracker)

    # ---- SGLang's ----

    def _match_tree(self, params: Any) -> Any:
        if self.kept is None or self.disable:
            return super()._match_tree(params)
        split, node = self.kept.before_walk(params.key), None
        try:
            result = super()._match_tree(params)
            node = result.last_device_node
        finally:
            self.kept.after_walk(split, node)
        return result

    def touch_prefix(self, key: Any) -> None:
        if self.kept is None or self.disable:
            super().touch_prefix(key)
            return
        split = self.kept.before_walk(key)
        super().touch_prefix(key)
        _, node, _ = self.tree_core.match_full_device_prefix(key)
        self.kept.after_walk(split, node)

    def insert(self, params: Any) -> Any:
        if self.kept is None or self.disable:
            return super().insert(params)
        split, node = self.kept.before_walk(params.key), None
        try:
            result = super().insert(params)
            node = result.last_device_node
        finally:
            self.kept.after_walk(split, node)
        return result

    def inc_lock_ref(self, node_id: Any, *args: Any, **kwargs: Any) -> Any:
        result = super().inc_lock_ref(node_id, *args, **kwargs)
        if self.kept is not None:
            self.kept.locked(node_id)
        return result

    def dec_lock_ref(self, node_id: Any, *args: Any, **kwargs: Any) -> Any:
        result = super().dec_lock_ref(node_id, *args, **kwargs)
        if self.kept is not None:
            self.kept.unlocked(node_id)
        return result

    def _evict_device_leaf(self, node_id: Any, tracker: Any) -> Any:
        if self.kept is not None and self.kept.spares(node_id):
            return None
        result = self.evict_leaf(node_id, tracker)
        if self.kept is not None:
            self.kept.evicted(node_id)
        return result

    def reset(self) -> None:
        super().reset()
        if self.kept is not None:
            self.kept.cleared()
