"""Talking to the server that is measured: prompts, what they took by its own clocks, and orders to its tiers."""

from __future__ import annotations

import itertools
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from swift_tiers.radix_tiering.base.config import BusConfig
from swift_tiers.radix_tiering.bus.contract.commands import AnyCommand
from swift_tiers.radix_tiering.bus.contract.views import RequestView
from swift_tiers.radix_tiering.bus.hear.reader import BusReader
from swift_tiers.radix_tiering.bus.hear.waiting import wait_for
from swift_tiers.radix_tiering.restore.profiles import ModelIdentity

from ...base.errors import CommandError
from ..demo.servers import LOG_LINES, Server, log_tail

#: Seconds until an answer, or a word on the bus, is given up.
PATIENCE_SECONDS = 120.0
#: How long pages may be on their way down before the next prompt is asked all the same, seconds.
SETTLE_SECONDS = 15.0
SETTLE_POLL_SECONDS = 0.02


class ServedModel(msgspec.Struct, frozen=True, kw_only=True):
    """What the server says about itself: whose costs these are."""

    model: ModelIdentity
    hardware: str
    vocabulary: int
    context: int  # tokens


class PromptTiming(NamedTuple):
    """One prompt. Seconds are the scheduler's own: from forming the first batch to the end of its last forward."""

    rid: str
    tiers: Mapping[str, int]  # tokens of the prompt, by the tier that they came from
    computed: int  # tokens
    seconds: float


class ProfileSession:
    """One server and its bus. A context manager; one thread."""

    def __init__(self, server: Server, bus: BusConfig) -> None:
        """Raises BusError, CommandError."""
        self._server = server
        self._numbers = itertools.count()
        assert bus.server is not None, "the setting names it"
        self._name = bus.server
        self._reader = BusReader.open(bus, "profile")

    def __enter__(self) -> ProfileSession:
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()

    # ---- prompts ----

    def ask(self, prompt: list[int]) -> PromptTiming:
        """One token of an answer to `prompt`, nothing else being under way. Raises CommandError."""
        rid = f"profile-{next(self._numbers)}"
        body = {"input_ids": prompt, "rid": rid, "sampling_params": {"temperature": 0, "max_new_tokens": 1}}
        meta = self._call("/generate", body | {"return_cached_tokens_details": True})["meta_info"]
        details = {tier: count for tier, count in (meta.get("cached_tokens_details") or {}).items() if tier in _TIERS}
        seconds = meta.get("prefill_finished_time", 0.0) - meta.get("forward_entry_time", 0.0)
        if sum(details.values()) != meta["cached_tokens"] or seconds <= 0:
            raise CommandError(f"profile: an answer without the times or tiers that it should have: {meta}")
        return PromptTiming(rid, details, meta["prompt_tokens"] - meta["cached_tokens"], seconds)

    def restore_seconds(self, answer: PromptTiming) -> float:
        """How long its pages took to host memory, verification included: of the slowest rank. Raises CommandError."""

        def ended() -> list[RequestView] | None:
            views = self._reader.request(answer.rid, self._name)
            return list(views) if views and all(view.ended is not None for view in views) else None

        views = self._wait(ended, f"how request {answer.rid} was restored")
        return max(view.restore_seconds or 0.0 for view in views)

    # ---- state ----

    def served(self) -> ServedModel:
        return msgspec.convert(self._state()["swift_tiers_profile"], ServedModel)

    def tiers(self) -> dict[str, Any]:
        """The tiers' counters; of the first rank."""
        found: dict[str, Any] = self._state()["swift_tiers"]
        return found

    def chunk(self) -> int:
        """Tokens of the server's longest forward."""
        size = self._call("/server_info").get("chunked_prefill_size")
        return int(size) if size and size > 0 else 1 << 30

    def room(self) -> int:
        """Tokens that the device holds."""
        return int(self._call("/server_info")["max_total_num_tokens"])

    def copy_seconds(self) -> float:
        """Spent copying from host memory to the device so far."""
        return float(self.tiers()["links"]["host-device"]["seconds"])

    # ---- orders ----

    def flush_device(self) -> None:
        """Only what is on the device: the server's `policy.flush_cache` says so."""
        self._call(f"/flush_cache?timeout={PATIENCE_SECONDS:g}", {})

    def order(self, command: AnyCommand) -> None:
        """Raises CommandError unless every rank carries it out."""
        outcome = self._reader.command(self._name, "swift-tiers profile", command, PATIENCE_SECONDS)
        if outcome.state != "done":
            raise CommandError(
                f"profile: the server did not {type(command).__name__}: {outcome.reason or outcome.state}"
            )

    def settle(self) -> None:
        """Wait until nothing is on its way down, which would slow what is measured next."""
        before: object = None

        def quiet() -> bool | None:
            nonlocal before
            tiers = self.tiers()
            links = tiers["links"]
            moved = {name: link["pages"] for name, link in links.items()}
            done = not tiers["write_queue_pages"] and moved == before
            before = moved
            return done or None

        deadline = time.monotonic() + SETTLE_SECONDS
        while not quiet() and time.monotonic() < deadline:
            time.sleep(SETTLE_POLL_SECONDS)

    # ----

    def _state(self) -> dict[str, Any]:
        states = self._call("/server_info")["internal_states"]
        found: dict[str, Any] = states[0]
        return found

    def _wait(self, look: Callable[[], Any], what: str) -> Any:
        found = wait_for(look, PATIENCE_SECONDS)
        if found is None:
            raise CommandError(f"profile: the bus does not say within {PATIENCE_SECONDS:.0f} s {what}")
        return found

    def _call(self, path: str, body: Any = None) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._server.port}{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as response:
                text = response.read().decode()
        except urllib.error.HTTPError as error:
            reason = " ".join(error.read(400).decode(errors="replace").split())
            raise CommandError(f"profile: the server answered {error.code} to {path}: {reason}") from None
        except OSError as error:
            self._server.check_alive()
            detail = log_tail(self._server.log, LOG_LINES)
            raise CommandError(f"profile: no answer from the server to {path}: {error}", detail=detail) from None
        return json.loads(text) if text[:1] in "{[" else text


_TIERS = ("device", "peer", "host", "ssd")
