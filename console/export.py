"""Writing what is shown to a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple, TextIO

from .model.table import as_csv, as_json
from .session import Session, ShownTable

KINDS = ("csv", "json", "svg")


class ExportError(ValueError):
    """Nothing was written; the message says why."""


class Export(NamedTuple):
    """A file that has been made for what is shown, and is still empty."""

    kind: str
    path: Path
    out: TextIO

    def write(self, content: str) -> None:
        """Raises ExportError."""
        try:
            with self.out:
                self.out.write(content)
        except OSError as error:
            raise ExportError(f"{self.path}: {error.strerror}") from None


def begin(session: Session, kind: str, file: str | None) -> Export:
    """Make the file. One that is there is never overwritten. Raises ExportError."""
    if kind not in KINDS:
        raise ExportError(f"export {kind[:20]}: there are {', '.join(KINDS)}")
    if kind != "svg" and (session.shown.is_hidden or not session.shown.table.columns):
        raise ExportError(f"export {kind}: there is no table here; svg writes the screen")
    folder = session.folder or Path.cwd()
    usual = f"swift-tiers-{session.view.NAME}-{session.now():%Y%m%d-%H%M%S}.{kind}"
    name = usual if file is None else os.path.expanduser(file)
    path = folder / name
    try:
        # What requests are called is nobody else's business.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        return Export(kind, path, os.fdopen(descriptor, "w", encoding="utf-8"))
    except FileExistsError:
        raise ExportError(f"{path}: is there already; give another name") from None
    except OSError as error:
        raise ExportError(f"{path}: {error.strerror}") from None


def content(shown: ShownTable, kind: str) -> str:
    """The table as it is sifted and sorted."""
    return (as_csv if kind == "csv" else as_json)(shown.table, shown.rows)
