"""Writing what is shown to a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from swift_tiers.console.model.table import as_csv, as_json

if TYPE_CHECKING:
    from swift_tiers.console.app import ConsoleApp

KINDS = ("csv", "json", "svg")


class ExportError(ValueError):
    """Nothing was written; the message says why."""


def export(app: ConsoleApp, kind: str, file: str | None) -> Path:
    """The table as it is sifted and sorted, or a picture of the screen. A file that is there is never overwritten."""
    if kind not in KINDS:
        raise ExportError(f"export {kind[:20]}: there are {', '.join(KINDS)}")
    folder = app.folder or Path.cwd()
    name = f"swift-tiers-{app.view.NAME}-{app.now():%Y%m%d-%H%M%S}.{kind}" if file is None else os.path.expanduser(file)
    path = folder / name
    if kind == "svg":
        content = app.export_screenshot(title="swift-tiers")
    else:
        table = app.grid.table
        if app.grid.has_class("-hidden") or not table.columns:
            raise ExportError(f"export {kind}: there is no table here; svg writes the screen")
        content = (as_csv if kind == "csv" else as_json)(table, app.grid.rows)
    try:
        with open(path, "x", encoding="utf-8") as out:
            out.write(content)
    except FileExistsError:
        raise ExportError(f"{path}: is there already; give another name") from None
    except OSError as error:
        raise ExportError(f"{path}: {error.strerror}") from None
    return path
