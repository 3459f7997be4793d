"""Errors that a caller of the engine may meet. Each message is one line: what, where, and what to do."""

from __future__ import annotations

from typing import Literal

#: Characters of one text of others, as an error of another program, that is told.
LONGEST_TEXT = 500


class SwiftTiersError(Exception):
    """Base of every error of this package."""


class ConfigError(SwiftTiersError):
    """A configuration that cannot be used. The message names the field and the remedy."""


class FormatError(SwiftTiersError):
    """A device file whose content cannot be used as it is."""


class StripeSetBusyError(SwiftTiersError):
    """Another process holds the stripe set."""


class BusError(SwiftTiersError):
    """The bus cannot be used just now. Serving goes on without it; the message names the remedy."""


class RedisFaultError(BusError):
    """The bus's Redis could not be reached, did not answer, or refused a command. Another connection may do better."""


class RedisRefusedError(RedisFaultError):
    """The bus's Redis has refused a command."""


class CommandUnclearError(BusError):
    """A command of an operator was sent, and its outcome is not known. The message says where to look for it."""

    def __init__(self, state: Literal["not answered", "not known", "not finished"], message: str) -> None:
        """`state`: in place of one that the bus tells."""
        super().__init__(message)
        self.state = state


class CommandRefusedError(SwiftTiersError):
    """A command of an operator that is not carried out. The message says why, and what would be."""


class CommandTooLateError(CommandRefusedError):
    """The deadline of a command passed before it was begun."""


class DamagedPageError(SwiftTiersError):
    """A page was being copied to the device, and is not what it was. The load fails: nothing is answered from it."""


class NotHeldError(SwiftTiersError):
    """A page was to be copied to the device that has not come up, or is held nowhere: a defect of ours. The load fails,
    and nothing is answered from it."""


def shorten(text: str, most: int = LONGEST_TEXT) -> str:
    """A text of others as it may be told: on one line, without what a terminal would obey, and not too long."""
    text = " ".join(text.split())
    if not text.isprintable():
        text = "".join(letter if letter.isprintable() else "?" for letter in text)
    return text if len(text) <= most else f"{text[: most - 3]}..."
