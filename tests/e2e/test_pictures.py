"""Pictures in prompts, in real servers: SGLang's key of a picture stands for its KV in every tier."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image

from support.models import PICTURE, tiny_vl
from support.servers import START_SECONDS, Server, Site, call, snapshot, wait_written

pytestmark = [pytest.mark.e2e, pytest.mark.exhaustive, pytest.mark.timeout(1800)]

PAGE = 16
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


def ask(server: Server, name: str) -> Answer:
    text, pictures = ASKED[name]
    sampling = {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True}
    return Answer(
        call(
            server,
            "/generate",
            {
                "text": f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n",
                "image_data": [picture(seed) for seed in pictures],
                "sampling_params": sampling,
                "return_logprob": True,
            },
        )
    )


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
    tiers = {**site.tiers(host="4MiB"), "restore": {"strategy": "load"}}
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
