"""`swift-tiers console --once`: one look, printed."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from typing import TYPE_CHECKING

from ..base.errors import USAGE, CommandError

if TYPE_CHECKING:
    from swift_tiers.console.feeds.feed import Feed
    from swift_tiers.console.views.parts.view import ConsoleView

#: Columns where it goes to no terminal and nobody ($COLUMNS) says; lines that a view may take to tell its things.
WIDTH, HEIGHT = 160, 60
#: Between both looks at least, seconds: servers speak twice a second.
APART = 1.0


def print_once(feed: Feed, options: argparse.Namespace) -> int:
    """The exit code. Raises CommandError, BusError."""
    from swift_tiers.console import plain
    from swift_tiers.console.model.glyphs import ASCII, UNICODE
    from swift_tiers.console.model.palette import Palette
    from swift_tiers.console.model.place import Place
    from swift_tiers.console.views.parts.view import Scene

    from ..base.terminal import Terminal

    view = view_named(options.view or "overview")()
    moment = plain.watch(feed, max(APART, options.interval))
    known = [state.server.server for state in moment.servers]
    if options.server is not None and options.server not in known:
        raise CommandError(f"there is no server {options.server[:80]!r} on this bus; there are: {', '.join(known)}")
    unicode = not options.ascii and (sys.stdout.encoding or "").lower().startswith("utf")
    scene = Scene(
        moment,
        Place(view.NAME),
        only=options.server,
        width=_width(),
        height=HEIGHT,
        palette=Palette(not options.light),
        glyphs=UNICODE if unicode else ASCII,
    )
    scene = plain.asked(view, scene, feed)
    if options.json:
        print(json.dumps(plain.data(feed, view, scene), indent=1, default=str))
        return 0
    console = Terminal(width=scene.width)
    lines = [plain.heading(feed, scene), *plain.plain(view, scene).drawn(scene)]
    for line in lines:
        # Into a file or another program goes all that there is to say; a terminal gets what it has room for.
        if console.is_terminal:
            console.print(line, no_wrap=True, overflow="crop", end="\n")
        else:
            print(line.plain.rstrip())
    return 0


def view_named(name: str) -> type[ConsoleView]:
    """By its name, or the beginning of it. Raises CommandError."""
    from swift_tiers.console.views import VIEWS

    found = [view for view in VIEWS if name == view.NAME] or [view for view in VIEWS if view.NAME.startswith(name)]
    if len(found) != 1:
        raise CommandError(f"there is no view {name[:40]!r}; there are {', '.join(view.NAME for view in VIEWS)}", USAGE)
    return found[0]


def _width() -> int:
    if not sys.stdout.isatty() and "COLUMNS" not in os.environ:
        return WIDTH
    return max(40, shutil.get_terminal_size((WIDTH, HEIGHT)).columns)
