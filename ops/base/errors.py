"""The error that ends a command."""

from __future__ import annotations

#: Exit codes of `swift-tiers`. 0: done, and nothing is wrong.
FAILURE = 1
USAGE = 2
FOUND = 3  # a check ran to its end and found something
INTERRUPTED = 130  # 128 + SIGINT, as shells have it


class CommandError(RuntimeError):
    """Ends the command with `code`, and with the message as its last line on stderr.

    `detail`, lines that come before it, is for what other programs wrote: the end of a log.
    """

    def __init__(self, message: str, code: int = FAILURE, detail: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.detail = detail
