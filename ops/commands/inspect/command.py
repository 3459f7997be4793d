"""`swift-tiers inspect`: one look at the bus, or one after the other."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import TypeVar

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from swift_tiers.radix_tiering.base.config import BusConfig
from swift_tiers.radix_tiering.base.errors import BusError, ConfigError
from swift_tiers.radix_tiering.bus.contract.schema import MOST_LISTED_NODES, TIERS
from swift_tiers.radix_tiering.bus.contract.view_reading import AnyView
from swift_tiers.radix_tiering.bus.contract.views import RequestView
from swift_tiers.radix_tiering.bus.hear.asking import Answers
from swift_tiers.radix_tiering.bus.hear.event_tail import EventTail, Item, as_json, line
from swift_tiers.radix_tiering.bus.hear.figures import text
from swift_tiers.radix_tiering.bus.hear.reader import BusReader, Part

from ...base.errors import CommandError
from ...base.progress import note
from ...base.terminal import Terminal
from .bus import bus_config, redis_cli_hint, redis_cli_words
from .looks import Inspection

#: Columns of a table that goes to no terminal and whose width nobody ($COLUMNS) says.
WIDTH = 260
#: Between two looks for events, seconds: servers publish twice a second.
EVENTS_SECONDS = 0.5

Looker = Callable[[BusReader], Inspection]
Answer = TypeVar("Answer")


def run_inspect(options: argparse.Namespace) -> int:
    """See the package; `options` are its arguments. The exit code. Raises CommandError, ConfigError, BusError."""
    with Bus(bus_config(options)) as bus:
        try:
            bus.ask(partial(_check_server, options.server))
            if options.subject == "events":
                _show_events(bus, EventTail(options.server, options.limit), options)
            else:
                _show(bus, _looker(options), options)
        except KeyboardInterrupt:
            if options.watch is None:
                raise
    return 0


def show_redis_cli(options: argparse.Namespace) -> int:
    """Print how to look at this bus by hand; the exit code."""
    config = bus_config(options)
    print(shlex.join(redis_cli_words(config)))
    hint = redis_cli_hint(config)
    if hint:
        note(hint)
    return 0


class Bus:
    """A reader that is opened anew after an error, so that a watch outlives a Redis and takes up a new password."""

    def __init__(self, config: BusConfig) -> None:
        self._config = config
        self._reader: BusReader | None = None

    def __enter__(self) -> Bus:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._close()

    def ask(self, question: Callable[[BusReader], Answer]) -> Answer:
        """What it answers. Raises BusError, ConfigError."""
        if self._reader is None:
            self._reader = BusReader.open(self._config, "inspect")
        try:
            return question(self._reader)
        except BusError:
            self._close()
            raise

    def _close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None


def _check_server(name: str | None, reader: BusReader) -> None:
    if name is None:
        return
    known = [server.server for server in reader.servers()]
    if name not in known:
        raise CommandError(f"there is no server {text(name)} on this bus; there are: {', '.join(known) or 'none'}")


# ---- what to look at ----


def _looker(options: argparse.Namespace) -> Looker:
    if options.subject in ("request", "restore"):
        from .viewed import show_request, show_restore

        show = show_request if options.subject == "request" else show_restore
        return lambda reader: show(_request(options.name, options.server, reader))
    if options.subject in ("page", "prefix", "map", "nodes"):
        return partial(_ask, options)
    from .states import StateLooker, subject_named  # the console's views, which take their time to import

    return StateLooker(subject_named(options.subject, options.limit), options.server)


def _request(name: str, server: str | None, reader: BusReader) -> Sequence[RequestView]:
    """What its ranks say of the one with this id, else the only one whose id begins so. Raises CommandError."""
    from .requests import by_request

    views = reader.request(name, server)
    if not views:
        alike = by_request(view for view in reader.requests(server) if view.rid.startswith(name))
        if len({group[0].rid for group in alike}) > 1:
            listed = ", ".join(sorted({text(group[0].rid) for group in alike})[:5])
            raise CommandError(f"request {text(name)}: several begin so, among them {listed}; give more of its id")
        if not alike:
            raise CommandError(
                f"request {text(name)}: no server here knows it; ended ones are kept for 5 min, see `inspect requests`"
            )
        views = tuple(view for group in alike for view in group)
    return views


def _ask(options: argparse.Namespace, reader: BusReader) -> Inspection:
    """What the ranks answer to a question. Raises CommandError where none does."""
    from .viewed import show_map, show_nodes, show_page, show_prefix

    subject, server = options.subject, options.server
    snapshot = reader.snapshot(Part.RANKS | Part.TREES, server)
    if subject == "map":
        tier = options.name
        maps = _answered(f"map of {tier}", reader.map(tier, server))
        if tier not in TIERS and all(view.slots is None for view in maps.answers):
            raise CommandError(f"map of {tier}: nobody has one: {text(maps.answers[0].reason)}; see `inspect tiers`")
        return show_map(tier, maps, snapshot)
    if subject == "nodes":
        nodes = reader.nodes(min(options.limit, MOST_LISTED_NODES), server)
        return show_nodes(_answered("nodes", nodes), snapshot)
    page = options.name.lower()
    if subject == "prefix":
        return show_prefix(page, _answered(f"page {page}", reader.prefix(page, server)), snapshot)
    return show_page(page, _answered(f"page {page}", reader.page(page, server)), snapshot)


def _answered(what: str, answers: Answers[AnyView]) -> Answers[AnyView]:
    if not answers.answers:
        asked = ", ".join(f"{text(one)} {text(rank)}" for one, rank in answers.silent)
        raise CommandError(f"{what}: nobody answered ({f'asked {asked}' if asked else 'no server is alive'})")
    return answers


# ---- how to show it ----


def _show(bus: Bus, look: Looker, options: argparse.Namespace) -> None:
    """Once, or until Ctrl-C."""
    first = bus.ask(look)
    if options.watch is None:
        _print(first, None if options.json else _console())
    elif options.json or not sys.stdout.isatty():
        _watch_lines(bus, look, first, options)
    else:
        _watch_screen(bus, look, first, options)


def _console() -> Console:
    fixed = WIDTH if not sys.stdout.isatty() and "COLUMNS" not in os.environ else None
    return Terminal(width=fixed)


def _print(look: Inspection, console: Console | None) -> None:
    """Without a console as JSON."""
    if console is None:
        print(json.dumps(look.content, indent=1))
    else:
        console.print(Group(*look.shown))


def _watch_lines(bus: Bus, look: Looker, first: Inspection, options: argparse.Namespace) -> None:
    """One look after the other: as JSON, a line each; else with the time above it."""
    seen: Inspection | None = first
    while True:
        if seen is not None and options.json:
            print(json.dumps(seen.content), flush=True)
        elif seen is not None:
            print(f"{datetime.now().isoformat(' ', 'seconds')}", flush=True)
            _print(seen, _console())
        time.sleep(options.watch)
        seen, trouble = _try(bus, look)
        if trouble:
            note(trouble)


def _watch_screen(bus: Bus, look: Looker, first: Inspection, options: argparse.Namespace) -> None:
    shown: Sequence[RenderableType] = first.shown
    with Live(console=_console(), screen=True, auto_refresh=False) as live:
        while True:
            name = " ".join(["inspect", options.subject, *([options.name] if options.name else [])])
            header = f"{name}   {datetime.now():%H:%M:%S}, every {options.watch:g} s; Ctrl-C ends\n"
            live.update(Group(Text(header, "dim"), *shown), refresh=True)
            time.sleep(options.watch)
            seen, trouble = _try(bus, look)
            shown = [Text(trouble, "bold red")] if seen is None else seen.shown


def _show_events(bus: Bus, tail: EventTail, options: argparse.Namespace) -> None:
    console = _console()

    def show(items: Sequence[Item]) -> None:
        for item in items:
            if options.json:
                print(as_json(item), flush=True)
            else:
                console.print(line(item), soft_wrap=True)

    show(bus.ask(tail.read))
    down = ""
    while options.watch is not None:
        time.sleep(min(options.watch, EVENTS_SECONDS))
        items, trouble = _try(bus, tail.read)
        if trouble and trouble != down:
            note(trouble)
        down = trouble
        show(items or [])


def _try(bus: Bus, question: Callable[[BusReader], Answer]) -> tuple[Answer | None, str]:
    """The answer, or what is wrong just now; a watch goes on."""
    try:
        return bus.ask(question), ""
    except (BusError, ConfigError, CommandError) as error:
        return None, f"{error} (trying again)"
