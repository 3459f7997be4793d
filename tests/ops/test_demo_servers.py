"""The demo's client and its child processes."""

from __future__ import annotations

import http.server
import inspect
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.utils.network import get_free_port_below_ephemeral

from swift_tiers.ops.commands.demo import replay, servers
from swift_tiers.ops.commands.demo.replay import ReplayError, ask, read_answer
from swift_tiers.ops.commands.demo.servers import Server, ServerError, free_ports, log_tail

# ---- answers ----


def usage(prompt: int, cached: int) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "prompt_tokens_details": {"cached_tokens": cached}}


@pytest.mark.parametrize(
    ("details", "expected"),
    [
        ({"device": 16, "host": 32}, (16, 32, 48, 4)),  # as SGLang's type of the details has it
        ({"device": 16, "host": 32, "ssd": 48}, (16, 32, 48, 4)),
        (None, (96, 0, 0, 4)),  # a server without tiers
    ],
)
def test_tokens_are_attributed(details: dict[str, int] | None, expected: tuple[int, int, int, int]) -> None:
    extension = {"output_ids": [[1, 2]], "cached_tokens_details": details}
    answer = read_answer(0.5, 1.0, usage(100, 96), extension)
    assert (answer.device, answer.host, answer.ssd, answer.recomputed) == expected
    assert answer.token_ids == (1, 2)


@pytest.mark.parametrize(
    ("first", "used", "extension"),
    [
        (0.5, {}, {"output_ids": [[1]]}),
        (0.5, usage(100, 0), {}),
        (0.0, usage(100, 0), {"output_ids": [[1]]}),
        (0.5, usage(100, 120), {"output_ids": [[1]]}),
        (0.5, usage(100, 16), {"output_ids": [[1]], "cached_tokens_details": {"device": 0, "host": 0, "ssd": 32}}),
    ],
)
def test_answers_that_make_no_sense_are_errors(first: float, used: dict[str, Any], extension: dict[str, Any]) -> None:
    with pytest.raises(ReplayError):
        read_answer(first, 1.0, used, extension)


class CannedServer(http.server.BaseHTTPRequestHandler):
    """Answers every request with the lines of `script`."""

    status = 200
    script: Sequence[str] = ()
    bodies: list[dict[str, Any]]

    def do_POST(self) -> None:
        self.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.do_GET()

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.end_headers()
        for line in self.script:
            self.wfile.write(line.encode())
            self.wfile.flush()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def canned() -> Iterator[tuple[int, type[CannedServer]]]:
    handler = type("Handler", (CannedServer,), {"bodies": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1], handler
    server.shutdown()
    thread.join()
    server.server_close()


def event(**content: object) -> str:
    return f"data: {json.dumps(content)}\n\n"


def test_a_stream_is_timed_and_read(canned: tuple[int, type[CannedServer]], monkeypatch: pytest.MonkeyPatch) -> None:
    now, stream = 0.0, replay.stream

    def slow(*words: Any) -> Iterator[dict[str, Any]]:
        """Each event takes a quarter of a second to come."""
        nonlocal now
        for one in stream(*words):
            now += 0.25
            yield one

    monkeypatch.setattr(replay, "stream", slow)
    monkeypatch.setattr(replay, "time", SimpleNamespace(perf_counter=lambda: now))
    port, handler = canned
    handler.script = (
        event(choices=[{"delta": {"role": "assistant", "content": ""}}]),
        event(choices=[{"delta": {"content": "x"}}]),
        event(choices=[], sglext={"output_ids": [[7, 8]], "cached_tokens_details": {"device": 0, "host": 64}}),
        event(choices=[], usage=usage(90, 80)),
        "data: [DONE]\n\n",
    )
    answer = ask(port, "hello", 2, "turn-1")
    assert (answer.ttft_seconds, answer.total_seconds) == (0.25, 1.0)
    assert (answer.host, answer.ssd, answer.recomputed, answer.token_ids) == (64, 16, 10, (7, 8))
    (body,) = handler.bodies
    assert body["temperature"] == 0
    assert body["max_tokens"] == 2
    assert body["rid"] == "turn-1"


def test_errors_of_a_server_are_errors(canned: tuple[int, type[CannedServer]]) -> None:
    port, handler = canned
    handler.script = (event(error={"message": "External KV cache load failed"}),)
    with pytest.raises(ReplayError, match="load failed"):
        ask(port, "hello", 2)
    handler.status = 503
    with pytest.raises(ReplayError, match="503"):
        ask(port, "hello", 2)
    (closed,) = free_ports(1)
    with pytest.raises(ReplayError, match="no answer"):
        ask(closed, "hello", 2)


# ---- children ----


class Sleeper(Server):
    """A server that is only a Python program."""

    program = "import time; time.sleep(600)"

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-c", self.program]


def sleeper(tmp_path: Path, program: str) -> Sleeper:
    server = Sleeper("sleeper", [], free_ports(1)[0], tmp_path / "log")
    server.program = program
    return server


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition: Any, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


STUBBORN_FAMILY = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = os.fork()
if child:
    print(child, os.getpid(), flush=True)
time.sleep(600)
"""


def test_no_process_outlives_the_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swift_tiers.ops.commands.demo.servers.STOP_SECONDS", 1.0)
    log = tmp_path / "log"

    def run_and_fail() -> None:
        with sleeper(tmp_path, STUBBORN_FAMILY) as server:
            server.start()
            wait_for(lambda: log.read_text().count("\n"))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_and_fail()
    processes = [int(word) for word in log.read_text().split()]
    assert len(processes) == 2
    wait_for(lambda: not any(alive(process) for process in processes))


def test_a_server_dies_with_its_demo(tmp_path: Path) -> None:
    """Even if the demo is killed in a way that lets it do nothing about it."""
    code = f"""
import sys
from pathlib import Path
from swift_tiers.ops.commands.demo.servers import Server
class Sleeper(Server):
    command = [sys.executable, "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(600)"]
Sleeper("x", [], 1, Path({str(tmp_path / "log")!r})).start()
import time; time.sleep(600)
"""
    parent = subprocess.Popen([sys.executable, "-c", code])
    log = tmp_path / "log"
    wait_for(lambda: log.exists() and log.read_text().count("\n"))
    child = int(log.read_text())
    assert alive(child)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    wait_for(lambda: not alive(child))


def test_a_server_that_dies_shows_its_log(tmp_path: Path) -> None:
    with sleeper(tmp_path, "print('cannot do this'); raise SystemExit(7)") as server:
        server.start()
        with pytest.raises(ServerError) as raised:
            server.wait_ready(30)
    assert "exit code 7" in str(raised.value)
    assert "cannot do this" in raised.value.detail
    assert str(tmp_path / "log") in str(raised.value)


def test_a_server_that_never_is_ready(tmp_path: Path) -> None:
    with sleeper(tmp_path, "import time; time.sleep(600)") as server:
        server.start()
        with pytest.raises(ServerError, match="not ready"):
            server.wait_ready(0.1)
        assert server.stop() < 20
        with pytest.raises(ServerError, match="ended by itself"):
            server.stop()


def test_a_server_that_does_not_end(tmp_path: Path) -> None:
    with sleeper(tmp_path, STUBBORN_FAMILY) as server:
        server.start()
        wait_for(lambda: (tmp_path / "log").read_text().count("\n"))
        with pytest.raises(ServerError, match="did not end"):
            server.stop(timeout=0.2)
        # What the block's end would do, without its patience.
        server._kill_group()


def test_free_ports_differ_and_are_free() -> None:
    ports = free_ports(5)
    assert len(set(ports)) == 5
    for port in ports:
        with socket.socket() as one:
            one.bind(("127.0.0.1", port))


def test_no_client_of_anybody_is_given_a_port_that_a_server_is_to_bind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel gives outgoing connections ports of a range of its own: a server found its port taken by one."""
    outgoing = tmp_path / "ip_local_port_range"
    monkeypatch.setattr(servers, "OUTGOING_PORTS", outgoing)
    outgoing.write_text("16000\t60999\n")
    assert all(8_000 <= port < 16_000 for port in free_ports(50))
    outgoing.write_text("1024\t65535\n")  # every port may be given: then none is better than another
    assert len(free_ports(3)) == 3
    outgoing.unlink()
    assert all(11_000 <= port < 22_000 for port in free_ports(50))


def test_no_server_is_given_a_port_that_ranks_of_another_may_meet_at() -> None:
    looks = inspect.signature(get_free_port_below_ephemeral).parameters
    assert looks["low"].default == servers.SGLANGS_PORTS


def test_no_port_is_given_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has bound the first by then."""
    monkeypatch.setattr(servers, "_ports_for_servers", lambda: list(range(11_000, 11_101)))
    first = free_ports(1)
    assert free_ports(1) != first


def test_ports_that_are_taken_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        monkeypatch.setattr(servers, "_ports_for_servers", lambda: [port] * 101)
        with pytest.raises(ServerError, match=r"no 1 ports are free .* end what listens on them"):
            free_ports(1)


def test_log_tails(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"\n".join(b"line %d" % number for number in range(100)) + b"\n\xff\n\n")
    assert log_tail(tmp_path / "log", 2).splitlines() == ["    line 99", "    \ufffd"]
    assert "empty" in log_tail(tmp_path / "none", 2)
