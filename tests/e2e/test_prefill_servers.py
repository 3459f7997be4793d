"""A real server that computes prompts, with tiers, and one that decodes, over Mooncake's transfer engine by TCP."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from swift_tiers.ops.commands.demo.servers import Server, free_ports

from support.mooncake import skip_without_library
from support.prompts import prompt
from support.servers import START_SECONDS, Site, call, wait_memory_empty, wait_written

pytestmark = [pytest.mark.e2e, pytest.mark.exhaustive, pytest.mark.timeout(1200)]

ENVIRONMENT = {
    "PYTHONPATH": str(Path(__file__).parents[1] / "support" / "sites" / "disaggregation"),
    "MOONCAKE_PROTOCOL": "tcp",
    "MC_FORCE_TCP": "1",
}


class Pair:
    """Both servers, which a router would give each request to."""

    def __init__(self, site: Site, tiers: dict[str, Any]) -> None:
        (self._meeting,) = free_ports(1)
        self.prefill = self._server(site, "prefill", "--disaggregation-bootstrap-port", str(self._meeting), tiers=tiers)
        # In a pool of SGLang's, as by default, what is retracted wants 10 GiB that are free.
        self.decode = self._server(site, "decode", "--disaggregation-decode-retraction-backup", "cpu_tensor")

    @staticmethod
    def _server(site: Site, mode: str, *more: str, tiers: dict[str, Any] | None = None) -> Server:
        return site.server(
            mode, "--disaggregation-mode", mode, "--disaggregation-transfer-backend", "mooncake",
            "--disable-overlap-schedule", "--skip-server-warmup", "--page-size", "16", *more,
            tiers=tiers, environment=ENVIRONMENT,
        )  # fmt: skip

    def start(self) -> None:
        for server in (self.prefill, self.decode):
            server.start()
        for server in (self.prefill, self.decode):
            server.wait_ready(START_SECONDS)

    def ask(self, tokens: list[int]) -> tuple[list[int], dict[str, Any]]:
        """The answer, and where its prompt came from."""
        body = {
            "input_ids": tokens,
            "sampling_params": {"temperature": 0, "max_new_tokens": 6, "ignore_eos": True},
            "bootstrap_host": "127.0.0.1",
            "bootstrap_port": self._meeting,
            "bootstrap_room": random.getrandbits(40),
        }
        with ThreadPoolExecutor(2) as both:
            computed, decoded = both.map(lambda one: call(one, "/generate", body), (self.prefill, self.decode))
        return decoded["output_ids"], computed["meta_info"].get("cached_tokens_details") or {}


def test_what_was_computed_once_is_decoded_from_ssd(plain, tmp_path_factory) -> None:
    skip_without_library()
    site = Site(tmp_path_factory.mktemp("pair"))
    prompts = [prompt(seed, tokens) for seed, tokens in ((1, 700), (2, 450), (3, 1000))]
    expected = plain.answers(prompts)
    pair = Pair(site, site.tiers() | {"policy": {"restore_deadline": "60s", "flush_cache": "host"}})
    with pair.prefill, pair.decode:
        pair.start()
        assert [pair.ask(one)[0] for one in prompts] == expected
        wait_written(pair.prefill)
        call(pair.prefill, "/flush_cache", {})
        wait_memory_empty(pair.prefill)
        for one, answer in zip(prompts, expected, strict=True):
            tokens, details = pair.ask(one)
            assert tokens == answer
            assert details["ssd"] == (len(one) - 1) // 16 * 16
