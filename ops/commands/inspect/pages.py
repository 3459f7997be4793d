"""What the ranks answer about one page."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from swift_tiers.radix_tiering.bus.contract.views import PageView
from swift_tiers.radix_tiering.bus.hear.asking import Answers
from swift_tiers.radix_tiering.bus.hear.figures import NONE, UNKNOWN, count, seconds, short, size, text

from .tables import FittingTable, Look, describe


def show_page(page: str, answers: Answers[PageView]) -> Look:
    """The ranks that answered, then those that did not."""
    table = FittingTable(
        " rank| held|host slot| ssd (device:slot)| peer|bytes|depth|children|uses|pins|last used|device slot| "
        "page before it| origin| namespace| checksum|age"
    )
    for view in answers.answers:
        table.add_row(*_cells(view))
    keys = {text(view.whole_key) for view in answers.answers if view.whole_key}
    shown: list[RenderableType] = [
        *(Text(f"WRONG {text(server)} {text(rank)}: did not answer") for server, rank in answers.silent),
        Text(f"page {', '.join(sorted(keys)) or page}"),
        table,
    ]
    silent = [{"server": server, "rank": rank} for server, rank in answers.silent]
    return Look({"page": page, "answers": describe(answers.answers), "silent": silent}, shown)


def _cells(view: PageView) -> list[str]:
    place = f"{text(view.server)} {text(view.rank)}"
    if not view.held:
        held, slot = UNKNOWN if view.held is None else "no", _slot(view.device_slot)
        return [place, held, *[NONE] * 9, slot, *[NONE] * 4, seconds(view.age_seconds)]
    units = " ".join(f"{device}:{slot}" for device, slot in view.ssd_placement)
    return [
        place, "yes", NONE if view.host_slot is None else str(view.host_slot), units or NONE, text(view.peer) or NONE,
        size(view.bytes),
        count(view.depth), count(view.children), count(view.uses), count(view.pins), seconds(view.last_used_seconds),
        _slot(view.device_slot), short(view.parent) or NONE, text(view.origin) or NONE, short(view.namespace),
        short(view.checksum) or NONE, seconds(view.age_seconds),
    ]  # fmt: skip


def _slot(number: int | None) -> str:
    return NONE if number is None else str(number)
