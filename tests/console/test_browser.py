"""The console in a browser, by Textual's own server: it starts, and what comes is the console."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from support.redis import PATIENCE, free_port

pytestmark = pytest.mark.anyio

SERVE = "import sys; from textual_serve.server import Server; Server(sys.argv[1], port=int(sys.argv[2])).serve()"


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    port = free_port()
    # A bus that is not there: the console must start all the same, and say so.
    words = [sys.executable, "-m", "swift_tiers.ops", "console", "--directory", str(tmp_path)]
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, shlex.join(words), str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield port
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


async def test_it_starts_in_a_browser(port: int) -> None:
    async with aiohttp.ClientSession() as session:
        page = ""
        for _ in range(int(PATIENCE / 0.2)):
            try:
                async with session.get(f"http://127.0.0.1:{port}/") as answer:
                    page = await answer.text()
                    break
            except aiohttp.ClientConnectionError:
                await asyncio.sleep(0.2)
        assert "textual" in page.lower()
        seen = b""
        async with session.ws_connect(f"http://127.0.0.1:{port}/ws?width=100&height=30") as socket, asyncio.timeout(60):
            async for message in socket:
                if message.type == aiohttp.WSMsgType.BINARY:
                    seen += message.data
                if b"LOST" in seen:
                    break
        assert b"swift-tiers" in seen
        assert b"Overview" in seen
