"""How a figure is declared: once, as a typed field with its kind and its meaning.

    class TierCounts(Figures, Generic[Gap]):
        hits: int | Gap = counter("pages that requests got from it")

From that line follow the field of the Redis hash and its row in `docs/bus.md`, the attribute of the reader's view, that
may be None (`TierCounts[None]`), that of the snapshot, which may not (`TierCounts[Never]`), that of what counts, the
series on `/metrics`, and the JSON. A figure's unit is in its name: `used_bytes`, `bytes_read`, `restore_seconds`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import cache
from typing import Any, NamedTuple, Never, TypeVar, dataclass_transform, get_args, get_origin, get_type_hints

import msgspec

#: Stands beside a figure's type for what takes its place where it is not said: None, or nothing (Never).
Gap = TypeVar("Gap")


class Kind(Enum):
    COUNTER = "counter"  # only grows, from the start of what counts it
    GAUGE = "gauge"  # a number that rises and falls
    HISTOGRAM = "histogram"  # durations by length
    FACT = "fact"  # text, a time, a yes or no, a number that does not change


class Form(NamedTuple):
    """How a value of several parts is written as text, and read. What cannot be read is the empty value."""

    write: Callable[[Any], str]
    read: Callable[[str], Any]
    empty: Any = ()


class Series(NamedTuple):
    """A series on `/metrics`, where its name does not follow from the figure's. Several figures may share one."""

    name: str  # after `swift_tiers_`
    label: str = ""  # parts figures that share it, or the entries of a dictionary
    help: str = ""  # empty: the figure's
    value: str = ""  # of the label; empty: the figure's name, or the entry's


#: Of a number that is not on `/metrics` though others beside it are.
NO_SERIES = Series("")


class Figure(NamedTuple):
    """What is declared of one field."""

    kind: Kind
    help: str
    empty: Any = None  # the value where nothing is said
    form: Form | None = None
    series: Series | None = None  # None: named after the figure
    family: str | None = None  # each entry of a dictionary is a field: `refused:full`; empty: after the figure


def counter(help: str, *, series: Series | None = None) -> Any:
    return Figure(Kind.COUNTER, help, series=series)


def gauge(help: str, *, series: Series | None = None) -> Any:
    return Figure(Kind.GAUGE, help, series=series)


def histogram(help: str, series: Series) -> Any:
    return Figure(Kind.HISTOGRAM, help, series=series)


def fact(help: str) -> Any:
    """A time, a yes or no, a number that does not change."""
    return Figure(Kind.FACT, help)


def text(help: str) -> Any:
    return Figure(Kind.FACT, help, "")


def several(help: str, form: Form) -> Any:
    """A value of several parts, in one text."""
    return Figure(Kind.FACT, help, form.empty, form)


def each(help: str, family: str = "", *, series: Series | None = None) -> Any:
    """A dictionary of which each entry is a field by itself, that begins with `family` or the figure's name."""
    return Figure(Kind.COUNTER, help, {}, series=series, family=family)


class FigureMeta(msgspec.StructMeta):
    """Makes one class of several declarations: `class TierView(RankedView, TierCounts[None])`.

    Python lets only one base of a class have fields. Those of a declaration, which holds figures only, are copied for
    this reason, with what takes the place of its gap: with None, each has a default; with Never, none has; in a class
    that counts, they begin at 0.
    """

    def __new__(
        mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], counts: bool = False, **options: Any
    ) -> Any:
        parts: dict[Any, Any] = {}  # declarations, and what fills their gaps
        for base in namespace.get("__orig_bases__", bases):
            if isinstance(get_origin(base), mcs):
                parts[get_origin(base)] = get_args(base)[0]
            elif isinstance(base, mcs) and base is not bases[0]:
                parts[base] = None
        bases = tuple(base for base in bases if base not in parts) or (Figures,)
        hints: dict[str, Any] = {}
        for part, gap in parts.items():
            hints |= {one: _filled(hint, gap) for one, hint in get_type_hints(part).items()}
        own = {one: value for one, value in namespace.items() if isinstance(value, Figure)}
        figures: dict[str, Figure] = {}
        for base in (*bases, *parts):
            figures |= getattr(base, "__figures__", {})
        figures |= own
        defaults: dict[str, Any] = {}
        if counts:
            defaults = {one: hint() for one, hint in hints.items()}
        elif Never not in parts.values():
            defaults = {one: figures[one].empty for one in (*hints, *own)}
        content = {
            one: msgspec.field(default_factory=dict) if value == {} else value for one, value in defaults.items()
        }
        content |= {one: value for one, value in namespace.items() if one not in own}
        mine = namespace.get("__annotations__", {})
        # Between what says whose figures these are, and its own.
        whose = {one: hint for one, hint in mine.items() if one not in own} if hints else {}
        content["__annotations__"] = whose | hints | mine
        content["__figures__"] = figures
        return super().__new__(mcs, name, bases, content, **{"kw_only": True, "frozen": not counts, **options})


def _filled(hint: Any, gap: Any) -> Any:
    """The type with `gap` in its gap, if it has one."""
    if not getattr(hint, "__parameters__", ()):
        return hint
    return hint[gap] if gap is not Never else next(one for one in get_args(hint) if one is not Gap)


@dataclass_transform(kw_only_default=True, field_specifiers=(msgspec.field,))
class Figures(msgspec.Struct, metaclass=FigureMeta):
    """Whatever holds figures. Takes keywords only, and does not change unless it counts (`counts=True`)."""


class Declared(NamedTuple):
    """One figure of a class."""

    name: str
    figure: Figure
    family: str  # empty: it is one field


@cache
def figures_of(kind: type[Figures]) -> tuple[Declared, ...]:
    """What a class declares, in order. Its fields that are no figures say whose these are."""
    figures: dict[str, Figure] = kind.__figures__  # type: ignore[attr-defined]
    return tuple(
        Declared(name, figures[name], "" if figures[name].family is None else figures[name].family or name)
        for name in kind.__struct_fields__
        if name in figures
    )
