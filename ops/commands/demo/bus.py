"""The demo's bus: its tables show what its server says there, which is what an operator sees."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from swift_tiers.radix_tiering.base.config import BusConfig
from swift_tiers.radix_tiering.base.read_config import parse_config
from swift_tiers.radix_tiering.bus.contract.schema import Keys
from swift_tiers.radix_tiering.bus.contract.views import RankState, RequestView
from swift_tiers.radix_tiering.bus.hear.reader import BusReader, Part
from swift_tiers.radix_tiering.bus.hear.waiting import wait_for
from swift_tiers.radix_tiering.bus.redis.redis_server import EmbeddedRedis

from ...base.errors import CommandError
from ..inspect.bus import redis_cli_words

#: What the server with tiers and its one rank are called on the bus.
SERVER, RANK = "demo", "dp0-tp0"
#: How often it publishes: a turn is shown once it has.
INTERVAL = "200ms"
#: How long the bus may take to say what has happened, seconds.
PATIENCE_SECONDS = 30.0
#: How long pages may take from host memory to ssd before the next turn is asked all the same, seconds.
SETTLE_SECONDS = 15.0
#: Lines of an answer of redis-cli that are shown.
SHOWN_LINES = 8


class Tried(NamedTuple):
    """A line for a shell, and what it printed, field and value of a hash on one line."""

    line: str
    output: list[str]


class DemoBus:
    """An embedded Redis that outlives the demo's servers, and a reader of it. A context manager.

    To be used by one thread, the one that makes it and lives as long: Redis ends with that thread.
    """

    def __init__(self) -> None:
        # Not in the demo's own directory: the name of a socket must be short.
        self._folder = tempfile.TemporaryDirectory(prefix="swift-tiers-bus-")
        #: The section `bus` of the server's configuration.
        self.settings = {
            "directory": self._folder.name,
            "server": SERVER,
            "interval": INTERVAL,
            "requests_interval": INTERVAL,
        }
        self._config: BusConfig = parse_config({"bus": self.settings}).bus
        self._redis = EmbeddedRedis(self._folder.name)
        self._reader: BusReader | None = None

    def __enter__(self) -> DemoBus:
        """Raises BusError or ConfigError where no Redis can be started."""
        try:
            self._redis.ensure()
            self._reader = BusReader.open(self._config, "demo")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._reader is not None:
            self._reader.close()
        self._redis.close()
        self._folder.cleanup()

    @property
    def socket(self) -> Path:
        return self._redis.path

    def request(self, rid: str) -> RequestView:
        """A request that has been answered. Raises CommandError if the bus does not say how it ended."""

        def ended() -> RequestView | None:
            found = [view for view in self._ask().request(rid, SERVER) if view.ended is not None]
            return found[0] if found else None

        view = wait_for(ended, PATIENCE_SECONDS)
        if view is None:
            raise CommandError(f"the bus does not say within {PATIENCE_SECONDS:.0f} s how request {rid} ended")
        return view

    def settled(self) -> RankState:
        """The server's state once nothing is on its way to ssd; such writes would slow the other server's turn.

        It is of now or later, not from before the call. Raises CommandError if the bus does not say.
        """
        asked = time.time()
        newest: RankState | None = None

        def quiet() -> RankState | None:
            nonlocal newest
            servers = self._ask().snapshot(Part.RANKS | Part.TIERS | Part.DEVICES, SERVER).servers
            for state in servers[0].ranks if servers else ():
                times = [view.time for view in (state.rank, *state.tiers, *state.devices) if view is not None]
                if state.rank is not None and all(when is not None and when > asked for when in times):
                    newest = state
                    return None if state.rank.write_queue_pages else state
            return None

        state = wait_for(quiet, SETTLE_SECONDS) or newest
        if state is None:
            raise CommandError(f"the bus says nothing about the server {SERVER} since {SETTLE_SECONDS:.0f} s")
        return state

    def try_lines(self, rid: str) -> list[Tried]:
        """Three lines that an operator would type, and what they print now."""
        try:
            cli = redis_cli_words(self._config)
        except CommandError:
            return []  # there is no redis-cli
        if shutil.which("redis-cli") == cli[0]:
            cli[0] = "redis-cli"
        keys, of = Keys(self._config.prefix), {"server": SERVER, "rank": RANK}
        tried = []
        for words in (
            ["ZRANGE", keys.of("requests", **of), "0", "-1"],
            ["HGETALL", keys.of("request", **of, rid=rid)],
            ["HGETALL", keys.of("tier", **of, tier="host")],
        ):
            command = [*cli, *words]
            answer = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
            lines = (answer.stdout or answer.stderr).splitlines()
            if words[0] == "HGETALL":
                # redis-cli prints a field and its value below each other.
                lines = [f"{name} {value}" for name, value in zip(lines[::2], lines[1::2], strict=False)]
            tried.append(Tried(shlex.join(command), lines))
        return tried

    def keep_up(self) -> None:
        """To be called every second or so while nothing else is asked: see `EmbeddedRedis.ensure`."""
        self._redis.ensure()

    def _ask(self) -> BusReader:
        assert self._reader is not None, "the bus is entered before it is asked"
        return self._reader
