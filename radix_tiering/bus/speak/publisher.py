"""The publisher: says on the bus what one rank holds and does, and hears what is asked and commanded there.

All of it is done by one thread, "swift-bus", which waits for Redis as long as it takes. Nobody waits for that thread:
whatever becomes of Redis, serving goes on.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable

import redis

from ...base.config import BusConfig
from ...base.errors import BusError, ConfigError, shorten
from ...base.events import EventLog
from ...base.runner import THREADS, Runner
from ...figures.telemetry import Answerer, Telemetry
from ...gpus.snapshots import GpuSample
from ...lending.leases.hand import LeaseSnapshot
from ..contract.commands import CommandRefusedError
from ..contract.faults import Faults
from ..contract.neighbours import Neighbours, OnNeighbours, Scope, lease_name, lease_scope
from ..contract.records import PublisherNumbers, ServerInfo
from ..contract.schema import SCHEMA_VERSION, SERVER_TTL, Keys
from ..redis.batch import RedisBatch
from ..redis.connection import ConnectionEndedError, bus_errors, connect_once, describe
from ..redis.outage import Outage
from ..redis.redis_clock import RedisClock
from ..redis.redis_server import EmbeddedRedis
from .command_book import CommandBook
from .control_inbox import ControlInbox, HandOn
from .event_feed import EventFeed
from .name_guard import NameGuard
from .question_inbox import QuestionInbox
from .state import RankSpeaker

logger = logging.getLogger(__name__)

#: The longest time between two looks at Redis, seconds, however rarely state is published: for questions, for events,
#: to see that Redis has lost its data, and that the embedded one runs.
LONGEST_TURN = 1.0
#: The time between two turns where more is known to wait, seconds.
SHORTEST_TURN = 0.05
#: The least time between two re-announcements of the whole state on one connection, seconds.
SHORTEST_RETURN = 0.5
#: Batches of events that are sent at the end; no event waits longer than that takes.
MOST_LAST_BATCHES = 16
#: How long the embedded Redis may take at a start before that is called an outage, seconds.
START_PATIENCE = 2.0
#: How often the TTL of this server's streams is renewed, seconds.
STREAMS_SECONDS = 60.0


class BusPublisher:
    """One for each rank. `start` it once and `close` it; any thread may."""

    def __init__(
        self,
        config: BusConfig,
        server: str,
        rank: str,
        info: ServerInfo,
        telemetry: Telemetry,
        events: EventLog,
        *,
        answerer: Answerer,
        on_order: HandOn | None = None,
        leases: Callable[[], LeaseSnapshot] | None = None,
        gpu: Callable[[], GpuSample | None] | None = None,
        on_neighbours: OnNeighbours | None = None,
        scope: Scope = lease_scope,
        leader: bool,
        runner: Runner = THREADS,
        client: Callable[[BusConfig, str], redis.Redis] = connect_once,
    ) -> None:
        """Does nothing yet. `server` is its name on the bus, `rank` this rank's, as `dp0-tp0`.

        `telemetry` and `answerer` are called on the publisher's thread. The `leader`, one rank of the server, also
        speaks for the server as a whole. With `bus.control`, `on_order` gets every command that is in order and in
        time, as the entry of the control stream that it came in, on the publisher's thread; it is for the first rank of
        each tensor group, which hands it to the others.

        `leases` tells what the rank lends and borrows, if it does; `gpu` the newest sample of its GPU, if it has one,
        without asking the driver for it. `on_neighbours` is told who lends on this machine, by lease name with the
        address, whenever that changes; as long as Redis is away it stays as it was. All are called on the publisher's
        thread. `scope`: of a lease address, as `neighbours.lease_scope` tells it. `client`: makes a connection, for the
        server of this name.

        Raises ConfigError for a directory of the embedded Redis that cannot be.
        """
        self._config = config
        self._server = server
        self._rank = rank
        self._events = events
        self._runner = runner
        self._monotonic = runner.monotonic
        self._keys = Keys(config.prefix)
        # Containers of one image have the same processes, and may begin at once.
        life = f"{os.getpid()}-{runner.boot_time():.6f}-{runner.random.getrandbits(32):08x}"
        self._numbers = PublisherNumbers()
        self._clock = RedisClock(runner.monotonic)
        self._faults = Faults(events)
        self._outage = Outage(events, runner.monotonic)
        self._state = RankSpeaker(
            config,
            self._keys,
            server,
            rank,
            life,
            info,
            telemetry,
            self._faults,
            leases=leases,
            gpu=gpu,
            scope=scope,
            leader=leader,
            runner=runner,
        )
        self._neighbours = (
            None
            if on_neighbours is None
            else Neighbours(
                self._keys,
                lease_name(server, rank),
                scope,
                on_neighbours,
                runner.monotonic,
                rank=rank,
                ranks=info.ranks,
            )
        )
        self._guard = NameGuard(self._keys, server, rank, life, events, leader=leader)
        self._feed = EventFeed(events, self._keys.of("events", server=server), rank, life, config.events)
        self._questions = QuestionInbox(self._keys, server, rank, answerer, self._faults)
        self._book = CommandBook(self._keys, server, rank, info.ranks, events, leader=leader, runner=runner)
        self._inboxes = [self._questions.inbox]
        self._control: ControlInbox | None = None
        if config.control and on_order is not None:
            self._control = ControlInbox(self._keys, server, self._book, on_order, events, self._faults, leader=leader)
            self._inboxes.append(self._control.inbox)
        names = ["events", "questions", *(["control"] if config.control else [])]
        self._streams = [self._keys.of(name, server=server) for name in names]
        self._embedded = EmbeddedRedis(config.directory) if config.url is None else None
        self._awaits_owner = False  # the embedded Redis is another participant's, to run or to start
        self._connect = client
        self._client: redis.Redis | None = None
        self._announced = False  # Redis has, as far as is known, all that was said
        # When it was last done, by the monotonic clock.
        self._ensured = self._looked = self._stated = self._renewed = float("-inf")
        self._wake = runner.flag()
        self._closing = False
        # A daemon: a Redis that does not answer must not keep the process from ending.
        self._thread = runner.thread(self._run, "swift-bus")
        self._started = False

    def start(self) -> None:
        """Begin. Returns at once."""
        self._started = True
        self._thread.start()

    def close(self, timeout: float = 5.0) -> None:
        """Say that this rank has ended, and end. Waits at most `timeout` seconds. Safe to call twice, or unstarted.

        The embedded Redis, if it is this rank's, ends too; another rank or server starts its own then.
        """
        self._closing = True
        self._wake.set()
        if self._started:
            self._thread.join(timeout)

    def report(self, order: str, outcome: str | CommandRefusedError, *, for_group: bool = False) -> None:
        """Say what became of the command with the id `order` at this rank: a result in words, which may be empty, or
        why it refused. With `for_group`: at every rank of its tensor group. Any thread; waits for nothing."""
        if self._config.control:
            self._book.report(order, outcome, for_group=for_group)
            self._wake.set()

    @property
    def alive(self) -> bool:
        """Whether its thread runs: from `start` to the end of `close`, whatever happens."""
        return self._thread.is_alive()

    @property
    def failures(self) -> int:
        """Tries to reach and to write Redis that failed."""
        return self._outage.failures

    def redis_time(self) -> float | None:
        """Seconds since 1970 by Redis' clock; None before the first connection. Any thread; asks nobody."""
        return self._clock.now()

    # ---- the thread ----

    def _run(self) -> None:
        try:
            while not self._closing:
                pause = SHORTEST_TURN
                with self._faults.at("a turn of the publisher"):
                    pause = LONGEST_TURN  # after a fault
                    pause = self._try_turn()
                self._wake.wait(pause)
                self._wake.clear()
            with self._faults.at("the publisher's end"):
                self._leave()
        finally:
            self._disconnect()
            if self._embedded is not None:
                self._embedded.close()

    def _try_turn(self) -> float:
        """One turn; seconds until the next."""
        try:
            with bus_errors(self._config):
                self._ensure()
                try:
                    return self._turn()
                except ConnectionEndedError:  # since the last turn
                    self._disconnect()
                    self._ensure()
                    return self._turn()
        except (BusError, ConfigError) as error:
            self._disconnect()
            return self._outage.failed(error, self._patience())
        except Exception:
            # What was sent is not known: with a new connection, everything is said anew.
            self._disconnect()
            raise

    def _patience(self) -> float:
        """At a start, ranks come a moment before the Redis that one of them starts."""
        return START_PATIENCE if self._awaits_owner and not self._numbers.publishes else 0.0

    def _ensure(self) -> None:
        """The embedded Redis runs, and there is a connection."""
        now = self._monotonic()
        if self._embedded is not None and (self._client is None or now - self._ensured >= LONGEST_TURN):
            self._awaits_owner = False
            self._awaits_owner = not self._embedded.ensure()
            self._ensured = now
        if self._client is None:
            self._client = self._connect(self._config, self._server)
            self._announced = False

    def _turn(self) -> float:
        client = self._client
        assert client is not None
        started, cpu = self._monotonic(), self._runner.thread_time()
        interval = float(self._config.interval)
        silent = self._look_at_name(client)
        if not self._announced:
            self._look_around(client)
        batch = RedisBatch()
        self._ask_time(batch)
        due = not self._announced or started - self._stated >= interval
        if due and not silent:
            self._state.publish(batch, self._count(), self._redis_now())
        elif not silent:
            self._state.check(batch)
        self._feed.check(batch)
        for inbox in self._inboxes:
            inbox.ask(batch)
        self._book.ask(batch)
        batch.run(client)
        if silent:
            for inbox in self._inboxes:
                inbox.take()  # the other server does what they say
        more = self._follow_up(client)
        if due:
            self._stated = started
            self._announced = True
            self._outage.succeeded()
        if due and not silent:
            self._numbers.publishes += 1
            self._numbers.publish_seconds = self._monotonic() - started
        if self._neighbours is not None:
            more |= self._look_for(self._neighbours, client)
        self._numbers.publish_cpu_seconds += self._runner.thread_time() - cpu
        if self._state.mirror.lost:
            # Redis was emptied without a break in the connection, or evicts keys: then not too often.
            self._announced = False
            return max(SHORTEST_TURN, self._looked + SHORTEST_RETURN - self._monotonic())
        if more or self._feed.waiting or self._book.hurries or self._questions.waits:
            return SHORTEST_TURN
        return max(0.0, min(self._stated + interval - self._monotonic(), LONGEST_TURN))

    def _look_at_name(self, client: redis.Redis) -> bool:
        """Whether another server has this one's name by now, so that this rank is silent. Before its first publishing
        it looks at nothing: what is there was left by somebody who had the name before."""
        if not self._numbers.publishes:
            return False
        was = self._guard.taken
        batch = RedisBatch()
        self._guard.ask(batch)
        batch.run(client)
        if was and not self._guard.taken:
            self._announced = False  # the other's state is gone, and ours was last told before it
        return self._guard.taken

    def _look_for(self, neighbours: Neighbours, client: redis.Redis) -> bool:
        """Whether to look for them again soon. They come last, in a batch of their own: a key of another server that
        cannot be read costs this rank none of its own words, and none of its other neighbours."""
        batch = RedisBatch()
        neighbours.ask(batch)
        refusal: redis.ResponseError | None = None
        try:
            batch.run(client)
        except redis.ResponseError as error:
            refusal = error  # of one key: all others were answered
        hurry = False
        with self._faults.at("the neighbours"):
            hurry = neighbours.settle()
            if refusal is not None:
                raise refusal
        return hurry

    def _look_around(self, client: redis.Redis) -> None:
        """After connecting, or where Redis seems to have lost what was said: what is there now? Reads only, so that it
        goes well where Redis has room for nothing new."""
        schema: list[str | None] = []
        batch = RedisBatch()
        self._ask_time(batch)
        batch.add("GET", self._keys.of("schema"), reply=schema.append)
        for inbox in self._inboxes:
            inbox.place(batch)
        batch.run(client)
        if schema[0] not in (None, str(SCHEMA_VERSION)):
            raise BusError(
                f"{describe(self._config)}: servers of another release use it (schema {shorten(str(schema[0]), 20)}, "
                f"not {SCHEMA_VERSION}); set another bus.prefix, or end them and remove the key "
                f"{self._keys.of('schema')}"
            )
        self._state.forget()
        self._book.forget()
        self._looked = self._monotonic()

    def _follow_up(self, client: redis.Redis) -> bool:
        """Send what needed an answer first; whether there may be more of it."""
        batch = RedisBatch()
        self._feed.send(batch)
        more = self._questions.answer(batch, self._runner.time())
        if self._control is not None:
            more |= self._control.take(self._redis_now())
        self._book.write(batch, self._redis_now())
        if len(batch) or self._monotonic() - self._renewed >= STREAMS_SECONDS:
            self._keep_streams(batch)
            batch.run(client)
        return more

    def _keep_streams(self, batch: RedisBatch) -> None:
        """They outlive the server, but not for ever."""
        self._renewed = self._monotonic()
        for stream in self._streams:
            batch.add("PEXPIRE", stream, round(SERVER_TTL * 1000))

    def _leave(self) -> None:
        """Say the last things, if that is possible at once."""
        if self._client is None:
            return
        try:
            batch = RedisBatch()
            self._feed.check(batch)
            if not self._look_at_name(self._client):
                self._state.leave(batch)
            batch.run(self._client)
            for _ in range(MOST_LAST_BATCHES):
                batch = RedisBatch()
                # Whoever has not said by now what became of a command will not.
                self._book.write(batch, math.inf)
                self._feed.send(batch)
                self._keep_streams(batch)
                batch.run(self._client)
                if not self._feed.waiting:
                    break
        except (redis.RedisError, OSError) as error:
            logger.info("swift-tiers: the bus could not be told that rank %s ends: %s", self._rank, error)

    def _redis_now(self) -> float:
        now = self._clock.now()
        assert now is not None, "asked before anything else"
        return now

    def _ask_time(self, batch: RedisBatch) -> None:
        asked = self._monotonic()

        def told(answer: tuple[int, int]) -> None:
            self._clock.told(asked, self._monotonic(), answer[0] + answer[1] / 1e6)

        batch.add("TIME", reply=told)

    def _count(self) -> PublisherNumbers:
        numbers = self._numbers
        numbers.events, numbers.events_lost = self._events.emitted, self._feed.lost
        numbers.publish_failures = self._outage.failures
        numbers.questions, numbers.questions_ignored = self._questions.answered, self._questions.ignored
        return numbers

    def _disconnect(self) -> None:
        client, self._client = self._client, None
        self._announced = False
        if client is not None:
            client.close()
