"""From what a key on the bus says to a view of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple, TypeVar, get_args

import msgspec

from ...figures.declare import figures_of
from .view import View, seconds_since
from .views import ServerView

AnyView = TypeVar("AnyView", bound=View)

#: Integers are below this, and not below its negative.
_INTEGERS = 1 << 63


class _Kind(NamedTuple):
    """What there is to know of a view: finding it takes longer than reading a hash."""

    types: Mapping[str, Any]  # by field
    numbers: tuple[str, ...]  # fields that are numbers, or several
    families: tuple[tuple[str, str], ...]  # field and what those that it gathers begin with
    readers: tuple[tuple[str, Callable[[str], Any]], ...]  # of fields whose text has a form of its own


@cache
def _known(kind: type[View]) -> _Kind:
    types = {field.name: field.type for field in msgspec.structs.fields(kind)}
    figures = figures_of(kind)
    return _Kind(
        types,
        numbers=tuple(name for name, hint in types.items() if {int, float} & {hint, *get_args(hint)}),
        families=tuple((name, family) for name, _, family in figures if family),
        readers=tuple((name, figure.form.read) for name, figure, _ in figures if figure.form is not None),
    )


def read_view(kind: type[AnyView], said: Mapping[str, str], **known: Any) -> AnyView:
    """The view of a hash. What cannot be read counts as not said. `known`, what its key says, goes first."""
    fields: dict[str, Any] = {name: value for name, value in said.items() if value != ""}
    of_kind = _known(kind)
    for name, family in of_kind.families:
        fields[name] = family_of(said, family)
    for name, read in of_kind.readers:
        try:
            fields[name] = read(fields.get(name, ""))
        except (ValueError, RecursionError):  # a number of thousands of digits; a thousand brackets
            fields[name] = read("")
    fields.update(known)
    try:
        view = msgspec.convert(fields, kind, strict=False)
    except msgspec.ValidationError:
        return _read_what_can_be(kind, fields)
    if all(_is_sayable(getattr(view, name)) for name in of_kind.numbers):
        return view
    return _read_what_can_be(kind, fields)


def _read_what_can_be(kind: type[AnyView], fields: Mapping[str, Any]) -> AnyView:
    """Field by field, some of which cannot be read. Slow, and rarely wanted."""
    readable = {}
    for name, hint in _known(kind).types.items():
        if name in fields:
            try:
                value = msgspec.convert(fields[name], hint, strict=False)
            except msgspec.ValidationError:
                continue
            if _is_sayable(value):
                readable[name] = value
    return kind(**readable)


def _is_sayable(value: Any) -> bool:
    """Whether it is no number, or one that has a form on every wire and in every file."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, int):
        return -_INTEGERS <= value < _INTEGERS
    return not isinstance(value, dict) or all(map(_is_sayable, value.values()))


def aged(view: AnyView, offset: float | None, now: float) -> AnyView:
    """`view` with its age. `offset`: its writer's clock minus Redis' clock, if known; `now`: by Redis' clock."""
    if view.time is None or offset is None:
        return view
    return msgspec.structs.replace(view, age_seconds=seconds_since(view.time - offset, now))


def read_server(name: str, said: Mapping[str, str], heartbeat: float, now: float) -> ServerView:
    """A server; one that says nothing is gone. Its heartbeat is by Redis' clock: its age needs no correction."""
    view = read_view(ServerView, said, server=name, alive=bool(said), age_seconds=seconds_since(heartbeat, now))
    if view.started is None or view.clock_offset_seconds is None:
        return view
    return msgspec.structs.replace(view, up_seconds=max(0.0, now + view.clock_offset_seconds - view.started))


def family_of(said: Mapping[str, str], name: str) -> dict[str, str]:
    """The fields that begin with `name` and a colon, by what follows it."""
    return {field.partition(":")[2]: value for field, value in said.items() if field.startswith(f"{name}:")}
