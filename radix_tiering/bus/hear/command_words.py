"""Commands as people write them: `drain-device 2`, `cap-tier host 8GiB`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec

from ..contract.commands import COMMANDS, AnyCommand, Command, CommandRefusedError
from ..contract.policy_values import check_values

_NUMBER = re.compile(r"-?\d+(\.\d+)?", re.ASCII)


def name_of(kind: type[Command]) -> str:
    """`drain-device`."""
    return str(kind.__struct_config__.tag).replace("_", "-")


def usage(kind: type[Command]) -> str:
    """`cap-tier host|ssd [LIMIT]`."""
    words = [name_of(kind)]
    for field in msgspec.structs.fields(kind):
        choices = get_args(field.type) if get_origin(field.type) is Literal else ()
        word = "|".join(choices) or field.name.upper()
        words.append(word if field.required else f"[{word}]")
    return " ".join(words)


def make_command(name: str, values: Sequence[str]) -> AnyCommand:
    """The command from its words. Raises CommandRefusedError: how it is written, or what its values may be."""
    kind: Any = next((kind for kind in COMMANDS if name_of(kind) == name), None)
    if kind is None:
        raise CommandRefusedError(f"{name[:40]}: is no command; there are {', '.join(map(name_of, COMMANDS))}")
    fields = msgspec.structs.fields(kind)
    if not sum(field.required for field in fields) <= len(values) <= len(fields):
        raise CommandRefusedError(f"usage: control SERVER {usage(kind)}")
    content = {}
    for field, value in zip(fields, values, strict=False):
        try:
            content[field.name] = _convert(value, field.type)
        except msgspec.ValidationError as error:
            what = _allowed(field.type) or str(error)[0].lower() + str(error)[1:]
            raise CommandRefusedError(
                f"{name}: {field.name} {value[:80]!r}: {what}; usage: control SERVER {usage(kind)}"
            ) from None
    command: AnyCommand = kind(**content)
    try:
        check_values(command)
    except CommandRefusedError as error:
        raise CommandRefusedError(f"{name}: {error}") from None
    return command


def _allowed(kind: Any) -> str:
    """Why a value is none for a field that takes one of several names, or names of one form; empty for others."""
    kinds = (kind,) if get_origin(kind) in (Literal, Annotated) else get_args(kind)
    choices = [choice for one in kinds if get_origin(one) is Literal for choice in get_args(one)]
    if choices:
        return f"is none of {', '.join(choices)}" if kinds == (kind,) else f"is no number, and not {', '.join(choices)}"
    for meta in (meta for one in kinds if get_origin(one) is Annotated for meta in one.__metadata__):
        if meta.pattern is not None:
            return f"is not {meta.description}"
    return ""


def _convert(value: str, kind: Any) -> object:
    """As a number where it is one and one is wanted."""
    wrong = None
    if _NUMBER.fullmatch(value):
        try:
            return msgspec.convert(float(value) if "." in value else int(value), kind)
        except msgspec.ValidationError as error:
            wrong = error  # or not: the key of a page may have decimal digits only
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise wrong or error from None
