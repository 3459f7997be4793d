"""What the console knows: pure, without a terminal and without Redis."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swift_tiers.radix_tiering.base.door import lazily

if TYPE_CHECKING:
    from .actions import Action, ActionError, read_action
    from .alarms import Alarm, Alarms
    from .charts import ChartSeries, Drawn
    from .events import EventHistory
    from .glyphs import ASCII, UNICODE, Glyphs
    from .history import History
    from .moment import Moment
    from .navigation import Navigation
    from .palette import MARKS, Palette
    from .place import Place, PlaceStep
    from .sieve import FilterError, Sieve
    from .table import Cell, Column, Row, Sorting, Table, as_csv, as_json, ordered
else:
    __getattr__ = lazily(__name__)

__all__ = [
    "ASCII",
    "MARKS",
    "UNICODE",
    "Action",
    "ActionError",
    "Alarm",
    "Alarms",
    "Cell",
    "ChartSeries",
    "Column",
    "Drawn",
    "EventHistory",
    "FilterError",
    "Glyphs",
    "History",
    "Moment",
    "Navigation",
    "Palette",
    "Place",
    "PlaceStep",
    "Row",
    "Sieve",
    "Sorting",
    "Table",
    "as_csv",
    "as_json",
    "ordered",
    "read_action",
]
