"""What is in the prefix tree, by size and by reuse? Lengths and hashes only: the bus carries no text of prompts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rich.text import Text

from swift_tiers.radix_tiering.bus.contract.views import NodeEntry, NodesView, TreeView
from swift_tiers.radix_tiering.bus.hear.figures import NONE, UNKNOWN, count, seconds, share, text
from swift_tiers.radix_tiering.bus.hear.troubles import tree_troubles

from ...feeds.feed import ViewQuestion
from ...model.place import Place, PlaceStep
from ...model.table import Cell, Column, Row, Table
from ..parts.asked import answer_line, answer_of, is_stale, views_of, whole_keys
from ..parts.blocks_offers import page_offers
from ..parts.drawn import drawn
from ..parts.measures import seconds_cell, share_cell
from ..parts.rank_table import HOME, RankColumn, count_cell, counted, rank_table
from ..parts.view import ConsoleView, OfferedAction, Scene
from .tree_nodes import Branch, NodeRows, Tree, node_key, tree_of

#: Nodes that each rank is asked for: what an operator scrolls through; a server would list 1000.
ASKED = 500
#: Cells of a node's bar, and of a sparkline.
BAR, WIDE_BAR, SPARK = 12, 48, 24
#: Cells of a view from which on bars and sparklines are wide.
WIDE = 140
#: Rates are of the last so many seconds.
RECENT_SECONDS = 10.0
#: Of the height, for lines above the table.
SHARE = 0.5

COLUMNS = (
    Column("node", widest=36, rank=9),
    Column("subtree", right=True, rank=9, unit="tokens"),
    Column("share", rank=8, widest=WIDE_BAR, unit="share, 0 to 1"),
    Column("tokens", right=True, rank=8),
    Column("hits", right=True, rank=8),
    Column("locks", right=True, rank=7),
    Column("idle", right=True, rank=8, unit="s"),
    Column("behind", right=True, rank=3),
    Column("key", rank=5),
)


class TreeShape(ConsoleView):
    """Top: sums of each rank, and the largest subtrees. In a node: where it hangs, and what is behind it."""

    NAME = "tree"
    TITLE = "Tree"
    QUESTION = "what is in the prefix tree, by size and by reuse?"
    LINES_SHARE = SHARE

    def lines(self, scene: Scene) -> list[Text]:
        asked = answer_line(scene, _question(scene), "which subtrees are largest")
        if scene.place.name("node") is not None:
            return [*_about(scene), asked]
        if scene.moment.snapshot is None:
            return []
        sums = tree_table(scene)
        lines = drawn(scene, sums, max(1, scene.room(SHARE) - 3), whole=False)
        for tree in (row.subject for row in sums.rows):
            if tree.complete is False:
                whose = f"{text(tree.server)} {text(tree.rank)}"
                lines.append(
                    scene.line((f"{whose}: at least so many tokens, the tree is too large to be walked", "note"))
                )
        for view in _views(scene):
            if view.nodes is None:
                reason = text(view.reason) or "says nothing of its nodes"
                lines.append(scene.line((f"{text(view.server)} {text(view.rank)}: {reason}", "warning")))
        return [*lines, _asked(scene, asked)]

    def table(self, scene: Scene) -> Table:
        keys = whole_keys(scene)
        if scene.place.name("node") is not None:
            tree, node = _node(scene)
            trees = [tree] if tree is not None and node is not None else []
            root = node.node if node is not None else None
            empty = "nothing that is listed is behind it"
        else:
            trees, root = [tree_of(view) for view in _views(scene) if view.nodes is not None], None
            empty = "the tree is empty" if trees else "no rank has told of its nodes"
        stale = is_stale(scene, _question(scene))
        rows = NodeRows(trees, lambda branch: _row(scene, branch, keys, stale, len(trees) > 1), root)
        return Table((*HOME, *COLUMNS) if len(trees) > 1 else COLUMNS, rows, empty=empty)

    def offers(self, scene: Scene) -> tuple[OfferedAction, ...]:
        branch = scene.selected.subject if scene.selected is not None else None
        if not isinstance(branch, Branch) or not branch.node.key:
            return ()
        return page_offers(scene, branch.view.server, whole_keys(scene).get(branch.node.key, ""))

    def questions(self, scene: Scene) -> tuple[ViewQuestion, ...]:
        return (_question(scene),)


def _question(scene: Scene) -> ViewQuestion:
    return ViewQuestion("nodes", str(ASKED), scene.server)


def _views(scene: Scene) -> list[NodesView]:
    return list(views_of(scene, _question(scene)))


def tree_table(scene: Scene) -> Table:
    """What each rank says of its tree in sum, and how much of prompts was found in it."""

    def recent(tree: TreeView, counter: str) -> float | None:
        return scene.moment.history.rate(tree, counter, seconds=RECENT_SECONDS)

    def reuse(tree: TreeView) -> Cell:
        reused, prompt = recent(tree, "reused_tokens"), recent(tree, "prompt_tokens")
        return share_cell(None if reused is None or not prompt else min(1.0, reused / prompt))

    def part(name: str, unit: str, of: Callable[[TreeView], Cell], rank: int) -> RankColumn:
        return RankColumn(Column(name, right=True, rank=rank, unit=unit), of)

    width = SPARK if scene.width < WIDE else WIDE_BAR
    fields = (
        counted("tokens", "cached_tokens", 9),
        part("in use", "share, 0 to 1", lambda tree: _share(tree.protected_tokens, tree.cached_tokens), 7),
        part("reuse", f"share of prompt tokens, last {RECENT_SECONDS:g} s", reuse, 8),
        RankColumn(
            Column("reuse over time", widest=WIDE_BAR, rank=5, unit="share of prompt tokens"),
            lambda tree: Cell(scene.glyphs.spark(_reuse(scene, tree, width), width, 1.0), style="good"),
        ),
        part("prompt/s", "tokens/s, last 10 s", lambda tree: count_cell(_rounded(recent(tree, "prompt_tokens"))), 7),
        part("evicted/s", "tokens/s, last 10 s", lambda tree: count_cell(_rounded(recent(tree, "evicted_tokens"))), 6),
        counted("nodes", "nodes", 6),
        counted("leaves", "leaves", 4),
        counted("deepest", "deepest_tokens", 5, "tokens"),
        part("reuse in all", "share, since the start", lambda tree: _share(tree.reused_tokens, tree.prompt_tokens), 4),
        counted("found in it", "reused_tokens", 3, "tokens since the start"),
        counted("prompt tokens", "prompt_tokens", 3, "since the start"),
        counted("evicted", "evicted_tokens", 3, "tokens since the start"),
        counted("locked", "protected_tokens", 2, "tokens"),
        counted("evictable", "evictable_tokens", 2, "tokens"),
        counted("depth", "depth", 2, "nodes"),
    )
    trees = [rank.tree for rank in scene.moment.ranks(scene.server) if rank.tree is not None]
    return rank_table(scene, trees, fields, tree_troubles, empty="no rank says anything of its tree")


def _share(part: int | None, whole: int | None) -> Cell:
    return share_cell(None if part is None or not whole else part / whole)


def _reuse(scene: Scene, tree: TreeView, width: int) -> list[float | None]:
    """The share of prompt tokens that were in the tree, look by look; where none came, nothing is known."""
    history = scene.moment.history
    reused = history.rates(tree, "reused_tokens", length=width)
    prompt = history.rates(tree, "prompt_tokens", length=width)
    return [
        None if found is None or not asked else min(1.0, found / asked)
        for found, asked in zip(reused, prompt, strict=True)
    ]  # fmt: skip


def _rounded(rate: float | None) -> int | None:
    return None if rate is None else round(rate)


def _asked(scene: Scene, asked: Text) -> Text:
    views = [view for view in _views(scene) if view.nodes is not None]
    if views:
        listed, nodes = sum(len(view.table) for view in views), sum(view.nodes or 0 for view in views)
        asked.append_text(scene.line(f"the {count(listed)} largest of {count(nodes)} nodes"))
        if any(view.complete is False for view in views):
            asked.append_text(scene.line(("; sizes are of the part that was walked", "warning")))
    return asked


def _node(scene: Scene) -> tuple[Tree | None, NodeEntry | None]:
    """What the place names."""
    server, rank = scene.place.name("server") or "", scene.place.name("rank") or ""
    view = answer_of(scene, _question(scene), server, rank)
    tree = tree_of(view) if view is not None and view.nodes is not None else None
    name = scene.place.name("node") or ""
    return tree, tree.nodes.get(int(name)) if tree is not None and name.isdecimal() else None


def _about(scene: Scene) -> list[Text]:
    """One node in full."""
    tree, node = _node(scene)
    name = scene.place.name("node") or ""
    where = f"of {text(scene.place.name('server') or '')} {text(scene.place.name('rank') or '')}"
    title = scene.line((f"node {text(name)} ", "title"), f"{where}  ")
    if tree is None:
        return [title]
    if node is None:
        return [title, scene.line(("it is not listed any more: evicted, split, or smaller than others now", "warning"))]
    total = sum(one.tokens for one in tree.nodes.values())
    above = tree.above(node)
    before = sum(one.tokens for one in above)
    key = f"{node.key}{scene.glyphs.ellipsis}" if node.key else "not known"
    title.append_text(scene.line(f"key of its last page {key}"))
    return [
        title,
        scene.line(
            (f"  {count(node.tokens)} tokens", "text"), f", from {before} to {before + node.tokens} of a prompt; ",
            (f"{count(node.subtree_tokens)} with all behind it", "text"),
            f", {share(node.subtree_tokens, total)} of what is listed",
        ),
        scene.line(
            (f"  {UNKNOWN if node.hits is None else count(node.hits)} requests", "text"), " used it, ",
            (f"{UNKNOWN if node.locks is None else count(node.locks)}", "pinned" if node.locks else "text"),
            " use it now; ", (f"idle {seconds(node.idle_seconds)}", "text"),
        ),
        scene.line("  path: root", *(f" {scene.glyphs.right} {one.node} ({count(one.tokens)})" for one in above)),
    ]  # fmt: skip


def _row(scene: Scene, branch: Branch, keys: Mapping[str, str], stale: bool, several: bool) -> Row:
    view, node = branch.view, branch.node
    tree = tree_of(view)
    part = node.subtree_tokens / tree.largest if tree.largest else None
    whole = keys.get(node.key) if node.key else None
    behind = len(tree.behind(node.node))
    home = (PlaceStep("server", view.server), PlaceStep("rank", view.rank))
    # The beginning of a key is enough to ask for a page. A node without one is shown by itself.
    key = whole or node.key
    place = (
        Place("blocks", (PlaceStep("page", key),)) if key else Place("tree", (*home, PlaceStep("node", str(node.node))))
    )
    named = (Cell(text(view.server), style="title"), Cell(text(view.rank))) if several else ()
    # A parent that is not listed is not drawn.
    away = f" in {node.parent}" if node.parent is not None and node.parent not in tree.nodes else ""
    cells = (
        *named,
        Cell(f"{branch.drawn(scene.glyphs)}{node.node}{away}", node.node, "title" if not branch.trunks else ""),
        Cell(count(node.subtree_tokens), node.subtree_tokens),
        Cell(scene.glyphs.bar(part, BAR if scene.width < WIDE else WIDE_BAR), part, "cached"),
        Cell(count(node.tokens), node.tokens),
        Cell(NONE if node.hits is None else count(node.hits), node.hits),
        Cell(NONE if node.locks is None else count(node.locks), node.locks, "pinned" if node.locks else ""),
        seconds_cell(node.idle_seconds),
        Cell(str(behind) if behind else NONE, behind),
        Cell(node.key or NONE, style="accent" if node.key else "muted"),
    )
    return Row(node_key(branch), cells, place, branch, stale)
