"""Pictures in prompts, in real servers: SGLang's key of a picture stands for its KV in every tier."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from PIL import Image

from swift_tiers.radix_tiering.bus.hear.waiting import wait_for

from support.models import PICTURE, tiny_vl
from support.servers import START_SECONDS, Server, Site, call, snapshot, wait_written

pytestmark = [pytest.mark.e2e, pytest.mark.exhaustive, pytest.mark.timeout(1800)]

PAGE, PATIENCE = 16, 120.0
#: Each of them in tokens: one a byte, 64 a picture.
ASKED = {
    "a picture and text": (PICTURE + "what is it? " * 20, (1,)),
    "another picture and the same text": (PICTURE + "what is it? " * 20, (2,)),
    "two pictures in a prompt of two chunks": (PICTURE + "which one? " * 50 + PICTURE, (1, 2)),
    # Their last page has tokens of the picture and others, so of a picture a part comes up and a part is computed.
    "a picture at the end": ("what is it? " * 9 + PICTURE, (1,)),
    "another picture at the end": ("what is it? " * 9 + PICTURE, (2,)),
}


def picture(seed: int) -> str:
    pixels = np.random.default_rng(seed).integers(0, 255, (256, 256, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def load_of(server: Server) -> tuple[int, int]:
    """Its requests that run, and that wait."""
    (load,) = call(server, "/v1/loads")["loads"]
    return load["num_running_reqs"], load["num_waiting_reqs"]


class Answer:
    """What a server said, and where the prompt's KV came from."""

    def __init__(self, said: dict[str, Any]) -> None:
        meta = said["meta_info"]
        self.tokens = said["output_ids"]
        self.logprobs = [entry[0] for entry in meta["output_token_logprobs"]]
        self.cached = meta["cached_tokens"]
        self.whole_pages = (meta["prompt_tokens"] - 1) // PAGE * PAGE
        self.details = meta.get("cached_tokens_details") or {}

    def same_as(self, other: Answer) -> bool:
        return self.tokens == other.tokens and self.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def body(text: str, pictures: tuple[int, ...], **more: Any) -> dict[str, Any]:
    """Of a request; `more`: fields of it."""
    return {
        "text": text, "image_data": [picture(seed) for seed in pictures] or None, "return_logprob": True,
        "sampling_params": {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True}, **more,
    }  # fmt: skip


def ask(server: Server, name: str) -> Answer:
    text, pictures = ASKED[name]
    prompt = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    return Answer(call(server, "/generate", body(prompt, pictures)))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    site = Site(tmp_path_factory.mktemp("site"))
    site.model = tiny_vl(site.root / "vl")
    return site


@pytest.fixture(scope="module")
def expected(site: Site) -> dict[str, Answer]:
    """Of a server without tiers, each computed whole."""
    found = {}
    with site.server("plain", "--page-size", str(PAGE), "--disable-radix-cache") as server:
        server.start()
        server.wait_ready(START_SECONDS)
        for name in ASKED:
            found[name] = ask(server, name)
            assert found[name].cached == 0
    return found


@pytest.fixture(scope="module")
def server(site: Site) -> Iterator[Server]:
    # By what it costs they would be computed wherever this machine reads slowly.
    tiers = site.tiers(host="4MiB")
    with site.server("main", "--page-size", str(PAGE), tiers=tiers) as server:
        server.start()
        server.wait_ready(START_SECONDS)
        yield server


def test_answers_depend_on_the_picture(expected: dict[str, Answer]) -> None:
    for one, other in (
        ("a picture and text", "another picture and the same text"),
        ("a picture at the end", "another picture at the end"),
    ):
        assert expected[one].logprobs != pytest.approx(expected[other].logprobs, abs=1e-2)
    assert expected["a picture at the end"].whole_pages > len("what is it? ") * 9


def test_each_picture_has_pages_of_its_own(server: Server, expected: dict[str, Answer]) -> None:
    for name, answer in expected.items():
        found = ask(server, name)
        assert found.same_as(answer), name
        assert found.cached < len("<|im_start|>user\n") + len("what is it? ") * 9 + PAGE, "of another picture"


def test_they_come_back_from_ssd(server: Server, expected: dict[str, Answer]) -> None:
    for name, answer in expected.items():
        wait_written(server)
        call(server, "/flush_cache", {})
        found = ask(server, name)
        assert found.same_as(answer), name
        assert found.details["ssd"] == found.whole_pages
    assert snapshot(server)["restores"]["failed_loads"] == 0


def test_they_come_back_after_a_restart(site: Site, server: Server, expected: dict[str, Answer]) -> None:
    wait_written(server)
    server.stop()
    server.start()
    server.wait_ready(START_SECONDS)
    server.wait_found(START_SECONDS)
    for name, answer in expected.items():
        found = ask(server, name)
        assert found.same_as(answer), name
        assert found.details["ssd"] + found.details["host"] + found.details["device"] == found.whole_pages
    assert snapshot(server)["tiers"]["ssd"]["hits"] > 0


@pytest.mark.parametrize("way", ["the turn is aborted, and another follows it", "the session is closed"])
def test_a_turn_that_is_computed_without_its_picture_is_nobody_elses(
    site: Site, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SGLang takes a waiting turn's picture away, and leaves the picture's numbers: on two ranks it computes them as
    zeros. What comes of that must not be found by whoever asks about the picture."""
    monkeypatch.setenv("SGLANG_CPU_OMP_THREADS_BIND", "0|1")
    text, shown = f"<|im_start|>user\n{ASKED['a picture and text'][0]}", (7,)
    directory = site.root / way
    directory.mkdir()
    tiers = site.tiers(directory, host="4MiB")
    more = ("--page-size", str(PAGE), "--tp-size", "2", "--max-running-requests", "1")
    with site.server("turns", *more, tiers=tiers) as server, ThreadPoolExecutor(2) as clients:
        server.start()
        server.wait_ready(START_SECONDS)
        right = Answer(call(server, "/generate", body(text, shown)))
        call(server, "/hicache/storage-backend/clear", {})
        call(server, "/flush_cache", {})
        session = call(server, "/open_session", {"capacity_of_str_len": 10_000})
        long = {"temperature": 0, "max_new_tokens": 3000, "ignore_eos": True}
        before = clients.submit(call, server, "/generate", {"text": "hello", "rid": "before", "sampling_params": long})
        assert wait_for(lambda: load_of(server) == (1, 0) or None, PATIENCE)
        turn = body(text, shown, rid="turn", session_params={"id": session})
        first = clients.submit(call, server, "/generate", turn)
        assert wait_for(lambda: load_of(server) == (1, 1) or None, PATIENCE)
        if way == "the session is closed":
            call(server, "/close_session", {"session_id": session})
            call(server, "/abort_request", {"rid": "before"})
            first.result(PATIENCE)
        else:
            call(server, "/abort_request", {"rid": "turn"})
            call(server, "/abort_request", {"rid": "before"})
            follows = {"id": session, "rid": "turn", "replace": True}
            call(server, "/generate", body(" and so? ", (), rid="after", session_params=follows))
        before.exception(PATIENCE)
        wait_written(server)
        call(server, "/flush_cache", {})
        assert Answer(call(server, "/generate", body(text, shown))).same_as(right)
