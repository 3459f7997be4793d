"""A server whose pages are kept in a codec: what it answers from tiers is near what it computed, and nobody else's."""

from __future__ import annotations

from typing import Any

import pytest

from support.prompts import prompt
from support.servers import START_SECONDS, Site, call, fill_device, generate, snapshot, wait_written

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

#: The likeliest token's log probability from coded pages may differ by so much, nats: one head's worth of bytes that
#: are another's moves it by several.
NEAR = 0.2
PROMPTS = [prompt(seed) for seed in range(5)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return Site(tmp_path_factory.mktemp("site"))


def likeliest(server: Any, tokens: list[int]) -> tuple[float, int]:
    """The log probability of the first token of the answer, and the prompt's tokens that came out of a cache."""
    sampling = {"temperature": 0, "max_new_tokens": 1, "ignore_eos": True}
    body = {"input_ids": tokens, "sampling_params": sampling, "return_logprob": True}
    meta = call(server, "/generate", body)["meta_info"]
    return meta["output_token_logprobs"][0][0], meta["cached_tokens"]


def tiers(site: Site, codec: str) -> dict[str, Any]:
    content = site.tiers(host="4MiB")
    content["host"]["codec"] = codec
    return content


def test_pages_in_a_codec_come_back_near_and_only_to_those_who_ask_for_it(site: Site, plain: Any) -> None:
    with site.server("int8", tiers=tiers(site, "int8")) as server:
        server.start()
        server.wait_ready(START_SECONDS)
        state = snapshot(server)
        assert state["page_codec"] == "int8"
        # 4 layers, K and V, 16 tokens, 2 heads of 16 values and a scale; in float32 they take 4 * 16 bytes.
        assert state["page_bytes"] == 4 * 2 * state["tokens_per_page"] * 2 * (16 + 4)
        computed = [likeliest(server, one)[0] for one in PROMPTS]
        assert [generate(server, one)[0] for one in PROMPTS] == plain.answers(PROMPTS), "nothing came from tiers yet"
        fill_device(server, 1)
        restored = [likeliest(server, one) for one in PROMPTS]
        assert min(cached for _, cached in restored) > 600, restored
        assert [value for value, _ in restored] == pytest.approx(computed, abs=NEAR)
        wait_written(server)
        server.stop()
        server.start()
        server.wait_ready(START_SECONDS)
        server.wait_found(START_SECONDS)
        again = [likeliest(server, one) for one in PROMPTS]
        assert min(cached for _, cached in again) > 600, "what was written before is found"
        assert [value for value, _ in again] == pytest.approx(computed, abs=NEAR)
        server.stop()
    with site.server("exact", tiers=tiers(site, "none")) as server:
        server.start()
        server.wait_ready(START_SECONDS)
        assert snapshot(server)["page_codec"] == ""
        answers = [generate(server, one) for one in PROMPTS]
        assert [tokens for tokens, _ in answers] == plain.answers(PROMPTS)
        assert [details for _, details in answers if any(details.values())] == [], "a page of another codec was found"
