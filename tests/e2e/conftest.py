"""What the tests of real servers share, since each start takes long (nearly all of it imports)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import pytest

from support.servers import START_SECONDS, Site, generate


class Plain:
    """A server without tiers over the model of every `Site`: what it answers is what all others have to.

    Page sizes, pools and threads do not matter to it. It starts with the first question, and is kept.
    """

    def __init__(self, site: Site, running: ExitStack) -> None:
        self._server = site.server("plain")
        self._running = running
        self._answers: dict[tuple[int, ...], list[int]] = {}

    def answers(self, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        for prompt in map(tuple, prompts):
            if prompt not in self._answers:
                self._answers[prompt] = self._ask(list(prompt))
        return [self._answers[tuple(prompt)] for prompt in prompts]

    def _ask(self, prompt: list[int]) -> list[int]:
        if not self._answers:
            self._running.enter_context(self._server)
            self._server.start()
            self._server.wait_ready(START_SECONDS)
        return generate(self._server, prompt)[0]


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plain]:
    with ExitStack() as running:
        yield Plain(Site(tmp_path_factory.mktemp("plain")), running)
