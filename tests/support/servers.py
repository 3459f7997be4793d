"""Real servers over a tiny model, and how tests talk to them."""

from __future__ import annotations

import contextlib
import json
import time
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil

from swift_tiers.ops.base.model import tiny_model
from swift_tiers.ops.commands.demo.servers import Server, free_ports
from swift_tiers.radix_tiering.bus.hear.waiting import wait_for

from .forked import ForkedServer
from .prompts import prompt

#: A guard against hanging, not a measure: on a busy machine a start takes minutes.
START_SECONDS = 900.0
DEVICE_TOKENS = 2048
REMOTE_CHILD = "swift_tiers.radix_tiering.tiers.remote.child"


def call(server: Server, path: str, body: Any = None, timeout: float = 120, accept: str = "*/*") -> Any:
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.port}{path}",
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json", "Accept": accept},
    )
    with urllib.request.urlopen(request, timeout=timeout) as response:
        text = response.read().decode()
    with contextlib.suppress(json.JSONDecodeError):
        return json.loads(text)
    return text


def generate(server: Server, token_ids: list[int], tokens: int = 6, **more: Any) -> tuple[list[int], dict[str, int]]:
    """(output token ids, cached_tokens_details without SGLang's own words for ssd); `more`: of SGLang's fields."""
    sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
    answer = call(server, "/generate", {"input_ids": token_ids, "sampling_params": sampling, **more})
    details = answer["meta_info"].get("cached_tokens_details") or {}
    for name in ("storage", "storage_backend"):
        details.pop(name, None)
    return answer["output_ids"], details


def fill_device(server: Server, seed: int) -> None:
    """Requests enough to evict everything else from the device; what they and others have left behind is on ssd."""
    wait_written(server)
    for number in range(4):
        generate(server, prompt(1000 * seed + number), 1)
        wait_written(server)


def snapshot(server: Server) -> dict[str, Any]:
    """What a server without replicas says of its tiers."""
    (state,) = server.states()
    return state


def wait_written(server: Server) -> None:
    """Wait until nothing moves to host memory, or on to ssd, any more: what is not there yet may be lost where others
    take its room. As far as can be seen from outside: nothing is to be written, and nothing has moved since the look
    before."""
    limit = time.monotonic() + 120
    before = None
    while True:
        now = {}
        for state in server.states():
            links = [link["pages"] for link in state["links"].values()]
            now[state["rank"]] = state["write_queue_pages"], state["tiers"]["host"]["pinned_pages"], links
        if now == before and not any(queued for queued, *_ in now.values()):
            return
        before = now
        assert time.monotonic() < limit, now
        time.sleep(0.05)


def wait_memory_empty(server: Server) -> None:
    """After a flush: what nobody finds any more is given back in steps, beside the scheduler."""
    limit = time.monotonic() + 120
    while any(state["tiers"]["host"]["pages"] for state in server.states()):
        assert time.monotonic() < limit, "a flush leaves pages in host memory"
        time.sleep(0.05)


def shared_store(engine: str, options: dict[str, Any]) -> dict[str, Any]:
    """The section `remote` of servers that share a store: all is sent there, and it is asked for with patience."""
    return {"engine": engine, "options": options, "admission": "always", "memory": "64MiB", "lookup_deadline": "1s"}


def await_the_neighbour(server: Server, answers: list[list[int]], seconds: float) -> None:
    """Ask prompts 0, 1, ... again, which are to be answered so, until something comes from a neighbour's memory."""

    def from_the_neighbour() -> int | None:
        found = 0
        for seed, answer in enumerate(answers):
            tokens, details = generate(server, prompt(seed))
            assert tokens == answer
            found += details.get("peer", 0)
        return found or None

    assert wait_for(from_the_neighbour, seconds), "nothing was served from the neighbour"


def children_of(server: Server) -> list[int]:
    """The processes in which the engines of its remote tiers live."""
    found = []
    for one in psutil.Process(server._process.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # it ends while it is looked at
            if one.status() != psutil.STATUS_ZOMBIE and REMOTE_CHILD in one.cmdline():
                found.append(one.pid)
    return found


def child_of(server: Server) -> int:
    """0 where there is none."""
    return next(iter(children_of(server)), 0)


class Site:
    """A model, directories, and servers over them."""

    def __init__(self, root: Path, make: Callable[[Path], Path] = tiny_model, prepare: str = "") -> None:
        """`make` makes the model; `prepare`: see `ForkedServer`, of each server of it."""
        self.root = root
        self.model = make(root / "model")
        self._prepare = prepare
        self.directories = [root / f"ssd{number}" for number in range(3)]
        for directory in self.directories:
            directory.mkdir()
        self.bus = root / "bus"  # of an embedded Redis that nobody else uses

    def server(
        self,
        name: str,
        *arguments: str,
        tiers: dict[str, Any] | None = None,
        environment: dict[str, str] | None = None,
        **changes: str,
    ) -> Server:
        """`environment`: of one that begins with it, and is not forked from what has imported SGLang already."""
        options = {
            "--model-path": str(self.model), "--dtype": "float32", "--max-total-tokens": str(DEVICE_TOKENS),
            "--chunked-prefill-size": "512", "--log-level": "warning", **changes,
        }  # fmt: skip
        command = [word for pair in options.items() for word in pair] + list(arguments)
        if tiers is not None:
            command += ["--enable-swift-tiers", "--swift-tiers-config", json.dumps(tiers)]
        port, meeting = free_ports(2)
        if "--dp-size" not in command:  # else each replica looks for one of its own
            command += ["--nccl-port", str(meeting)]
        log = self.root / f"{name}.log"
        if environment is not None:
            return Server(name, command, port, log, environment)
        server = ForkedServer(name, command, port, log)
        server.prepare = self._prepare
        return server

    def tiers(self, *directories: Path, host: str = "1MiB") -> dict[str, Any]:
        """Pages are loaded from where they are. What a server learns of costs, beside whatever else its machine has to
        do, decides nothing unless a test asks for that."""
        named = [str(directory) for directory in directories or self.directories]
        return {
            "restore": {"strategy": "load"},
            "host": {"size": host},
            "ssd": {"directories": named, "size_per_device": "32MiB", "stripe_unit": "8KiB"},
            "policy": {"restore_deadline": "60s"},
            "bus": {"directory": str(self.bus)},
        }


class Plain:
    """A server without tiers over the model of a site: what it answers is what all others of that model have to.

    Page sizes, pools and threads do not matter to it. It starts with the first question, and is kept.
    """

    def __init__(self, site: Site, running: ExitStack, *arguments: str, name: str = "plain", **options: str) -> None:
        self._server = site.server(name, *arguments, **options)
        self._running = running
        self._answers: dict[tuple[tuple[int, ...], str | None], list[int]] = {}

    def answers(self, prompts: Sequence[Sequence[int]], adapter: str | None = None) -> list[list[int]]:
        """`adapter`: by its name; None: without one."""
        for asked in map(tuple, prompts):
            if (asked, adapter) not in self._answers:
                more = {} if adapter is None else {"lora_path": adapter}
                self._answers[asked, adapter] = self._ask(list(asked), more)
        return [self._answers[tuple(asked), adapter] for asked in prompts]

    def _ask(self, asked: list[int], more: dict[str, str]) -> list[int]:
        if not self._answers:
            self._running.enter_context(self._server)
            self._server.start()
            self._server.wait_ready(START_SECONDS)
        return generate(self._server, asked, **more)[0]
