"""What the tree view says of SGLang's radix trees."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from swift_tiers.console.feeds.feed import ViewAnswers, ViewQuestion
from swift_tiers.console.model.glyphs import ASCII
from swift_tiers.console.model.place import Place, PlaceStep
from swift_tiers.console.model.table import Sorting, Table, ordered
from swift_tiers.console.views.parts.view import Answered, Scene
from swift_tiers.console.views.tree.tree_nodes import ORDERS, Tree
from swift_tiers.console.views.tree.view import ASKED, TreeShape, tree_table
from swift_tiers.radix_tiering.bus.contract.commands import Pin
from swift_tiers.radix_tiering.bus.contract.views import NodeEntry, NodesView

from support.console_answers import KEY, nodes_view
from support.console_world import World, scene_of

TREE = TreeShape()


def scene(place: Place | None = None, *views: NodesView, only: str | None = "alpha", **changes: Any) -> Scene:
    """Of one server, or of several; answered half a second ago."""
    made = scene_of(place or Place("tree"), only=only, **changes)
    said = Answered(ViewAnswers(views=views or (nodes_view("alpha"),)), 0.5)
    return replace(made, answers=dict.fromkeys(TREE.questions(made), said))


def words(shown: Scene) -> str:
    return "\n".join(line.plain for line in TREE.lines(shown))


def column(table: Table, name: str, rows: Any = None) -> list[str]:
    at = [one.name for one in table.columns].index(name)
    return [row.cells[at].text for row in (table.rows if rows is None else rows)]


def test_children_stand_behind_their_parents_the_largest_first() -> None:
    table = TREE.table(scene(glyphs=ASCII))
    assert column(table, "node") == ["3", "|-17", "| |-33", "| `-34", "|-21", "| `-40", "`-22", "90"]
    assert column(table, "subtree")[:2] == ["61.4k", "30.7k"]
    assert column(table, "hits")[5] == column(table, "idle")[5] == "-", "what is not known is not zero"


def test_sorting_keeps_children_with_their_parents() -> None:
    table = TREE.table(scene(glyphs=ASCII))
    by_idle = ordered(table, Sorting("idle", True))
    assert column(table, "node", by_idle) == ["90", "3", "|-21", "| `-40", "|-22", "`-17", "  |-34", "  `-33"]
    least_used = ordered(table, Sorting("hits", False))
    assert column(table, "node", least_used)[:3] == ["90", "3", "|-22"]


@given(st.lists(st.tuples(st.integers(-1, 30), st.integers(1, 99)), max_size=25), st.sampled_from(sorted(ORDERS)))
def test_every_node_is_drawn_once_whatever_is_said_of_parents(nodes: list[tuple[int, int]], order: str) -> None:
    """Parents may be missing. Only nodes that are their own ancestors hang nowhere: no tree has them."""
    table = tuple(
        NodeEntry(number, None if parent < 0 else parent, size, size, None, None, None, "")
        for number, (parent, size) in enumerate(nodes)
    )
    drawn = [branch.node.node for branch in Tree(nodes_view("alpha", table)).branches(order)]
    above = {node.node: node.parent for node in table}

    def circular(node: int) -> bool:
        seen: list[int] = []
        at: int | None = node
        while at is not None and at in above and at not in seen:
            seen.append(at)
            at = above[at]
        return at in seen and at != seen[-1]

    assert len(drawn) == len(set(drawn))
    assert set(drawn) >= {node.node for node in table if not circular(node.node)}


def test_a_node_leads_to_the_life_of_its_last_page_where_its_key_is_known() -> None:
    rows = TREE.table(scene()).rows
    by_node = {row.subject.node.node: row for row in rows}
    assert by_node[33].place == Place("blocks", (PlaceStep("page", KEY),))
    begun = by_node[17].subject.node.key
    assert len(begun) < len(KEY)
    assert by_node[17].place == Place("blocks", (PlaceStep("page", begun),)), "its beginning is enough to ask for it"


def test_a_node_without_a_key_is_shown_by_itself() -> None:
    table = (NodeEntry(5, None, 64, 64, 1, 0, 0.5, ""),)
    (row,) = TREE.table(scene(None, nodes_view("alpha", table))).rows
    home = (PlaceStep("server", "alpha"), PlaceStep("rank", "dp0-tp0"))
    assert row.place == Place("tree", (*home, PlaceStep("node", "5")))


def test_a_parent_that_is_not_listed_is_named() -> None:
    table = (NodeEntry(5, 3, 64, 64, 1, 0, 0.5, ""), NodeEntry(6, 5, 32, 32, 1, 0, 0.5, ""))
    assert column(TREE.table(scene(None, nodes_view("alpha", table))), "node") == ["5 in 3", "└ 6"]


def test_one_node_and_what_is_behind_it() -> None:
    place = Place("tree", (PlaceStep("server", "alpha"), PlaceStep("rank", "dp0-tp0"), PlaceStep("node", "17")))
    shown = scene(place, glyphs=ASCII)
    said = words(shown)
    assert "8192 tokens, from 2048 to 10240 of a prompt" in said
    assert "120 requests used it, 2 use it now; idle 400 ms" in said
    assert "root > 3 (2048)" in said
    assert column(TREE.table(shown), "node") == ["|-33", "`-34"]


def test_a_node_that_is_gone() -> None:
    place = Place("tree", (PlaceStep("server", "alpha"), PlaceStep("rank", "dp0-tp0"), PlaceStep("node", "99")))
    assert "it is not listed any more" in words(scene(place))
    assert not TREE.table(scene(place)).rows


def test_sums_with_the_rate_of_reuse() -> None:
    shown = scene(width=118, height=36)
    sums = tree_table(shown)
    (row,) = sums.rows
    cells = {column.name: cell.text for column, cell in zip(sums.columns, row.cells, strict=True)}
    names = ("state", "tokens", "in use", "reuse", "prompt/s", "evicted/s", "nodes", "reuse in all")
    assert [cells[name] for name in names] == ["ok", "118k", "24%", "80%", "10k", "200", "412", "75%"]
    assert "the 8 largest of 412 nodes" in words(shown)


def test_several_servers_are_told_apart() -> None:
    shown = scene(None, nodes_view("alpha"), nodes_view("beta"), only=None)
    assert TREE.questions(shown) == (ViewQuestion("nodes", str(ASKED), None),)
    assert sorted(set(column(TREE.table(shown), "server"))) == ["alpha", "beta"]
    assert re.search("beta +dp0-tp0", words(shown))


def test_ranks_that_have_no_room_are_counted() -> None:
    world = World(servers=tuple(f"server-{number}" for number in range(12)), gone=())
    shown = scene_of(Place("tree"), world, width=78, height=20)
    lines = TREE.lines(shown)
    assert "and 5 more" in "\n".join(line.plain for line in lines)
    assert len(lines) <= 20 * TREE.LINES_SHARE


def test_what_a_server_cannot_say_is_said() -> None:
    cannot = NodesView(server="alpha", rank="dp0-tp0", reason="sampling is off")
    assert "sampling is off" in words(scene(None, cannot))
    assert TREE.table(scene(None, cannot)).empty == "no rank has told of its nodes"
    part = nodes_view("alpha", complete=False)
    assert "sizes are of the part that was walked" in words(scene(None, part))
    assert "asking" in words(scene_of(Place("tree")))


def test_lines_and_rows_are_ascii_where_signs_must_be() -> None:
    shown = scene(None, nodes_view("alpha"), nodes_view("beta"), only=None, glyphs=ASCII)
    assert words(shown).isascii()
    assert all(cell.text.isascii() for row in TREE.table(shown).rows for cell in row.cells)


def test_a_tree_that_is_unknown_shows_no_figures_as_zero() -> None:
    shown = scene()
    ranks = shown.moment.servers[0].ranks
    bare = msgspec.structs.replace(ranks[0].tree, nodes=None, cached_tokens=None, prompt_tokens=None)
    state = msgspec.structs.replace(shown.moment.servers[0], ranks=(msgspec.structs.replace(ranks[0], tree=bare),))
    assert shown.moment.snapshot is not None
    snapshot = msgspec.structs.replace(shown.moment.snapshot, servers=(state,))
    said = words(replace(shown, moment=replace(shown.moment, snapshot=snapshot)))
    assert re.search(r"dp0-tp0 +\? ", said)
    assert said.splitlines()[1].endswith(" ?"), "its nodes"


def test_the_prefix_of_a_node_can_be_pinned_where_its_key_is_known() -> None:
    shown = scene()
    rows = {row.subject.node.node: row for row in TREE.table(shown).rows}
    offers = TREE.offers(replace(shown, selected=rows[33]))
    assert [(offer.label, offer.server) for offer in offers] == [
        ("pin", "alpha"),
        ("unpin", "alpha"),
        ("drop", "alpha"),
    ]
    assert offers[0].make("") == Pin(page=KEY)
    assert TREE.offers(replace(shown, selected=rows[17])) == ()
    assert TREE.offers(shown) == ()
