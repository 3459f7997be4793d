"""One turn: a streamed chat completion over the OpenAI-compatible endpoint.

Time to first token is from the first byte sent to the first event of the stream; SGLang sends that with the first
token. Token ids and the tiers that served come with the same answer, in the `sglext` event that ends the stream.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from ...base.errors import CommandError

#: Seconds until a request that gets no byte is given up.
REQUEST_SECONDS = 180.0


class ReplayError(CommandError):
    """A server's answer was an error, or not what this client understands."""


class TurnAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One server's answer to one turn. Prompt tokens: device + host + ssd + recomputed."""

    ttft_seconds: float
    total_seconds: float
    prompt_tokens: int
    device: int
    host: int
    ssd: int
    token_ids: tuple[int, ...]

    @property
    def recomputed(self) -> int:
        return self.prompt_tokens - self.device - self.host - self.ssd


def ask(port: int, text: str, max_tokens: int, rid: str | None = None) -> TurnAnswer:
    """Send `text` as the user's message, greedily, and read the answer. Raises ReplayError.

    `rid`: what the request is called on the bus; the server finds a name where none is given.
    """
    body = {
        "model": "default",
        "messages": [{"role": "user", "content": text}],
        "temperature": 0,
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_cached_tokens_details": True,
        "return_output_ids_in_sglext": True,
        **({} if rid is None else {"rid": rid}),
    }
    started, first = time.perf_counter(), 0.0
    extension: dict[str, Any] = {}
    usage: dict[str, Any] = {}
    for event in stream(port, "/v1/chat/completions", body):
        if event.get("choices") and not first:
            first = time.perf_counter() - started
        extension.update(event.get("sglext") or {})
        usage = event.get("usage") or usage
    total = time.perf_counter() - started
    return read_answer(first, total, usage, extension)


def stream(port: int, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Post `body`: the events of the answer as they come. Raises ReplayError, also for an event that is an error."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=REQUEST_SECONDS)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise ReplayError(f"the server answered {response.status}: {response.read(400).decode(errors='replace')}")
        for event in _events(response):
            if "error" in event:
                raise ReplayError(f"the server answered with an error: {json.dumps(event['error'])[:400]}")
            yield event
    except (OSError, http.client.HTTPException) as error:
        raise ReplayError(f"no answer from the server on port {port}: {type(error).__name__}: {error}") from error
    finally:
        connection.close()


def _events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """The JSON of each server-sent event."""
    for raw in response:
        line = raw.strip()
        if line.startswith(b"data:") and line != b"data: [DONE]":
            yield json.loads(line[5:])


def read_answer(first: float, total: float, usage: dict[str, Any], extension: dict[str, Any]) -> TurnAnswer:
    """Put an answer together from the last events of its stream. Raises ReplayError."""
    try:
        prompt = usage["prompt_tokens"]
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        (token_ids,) = extension["output_ids"]
    except (KeyError, ValueError):
        raise ReplayError(f"an answer without usage or token ids: {usage} {sorted(extension)}") from None
    details = extension.get("cached_tokens_details") or {"device": cached}
    device, host = details.get("device", 0), details.get("host", 0)
    # Where SGLang's own type of these details drops a tier that it does not know, the usage still counts its tokens.
    ssd = details.get("ssd", cached - device - host)
    if not first or device + host + ssd != cached or cached > prompt:
        raise ReplayError(f"an answer whose figures do not add up: {usage} {details}")
    return TurnAnswer(
        ttft_seconds=first,
        total_seconds=total,
        prompt_tokens=prompt,
        device=device,
        host=host,
        ssd=ssd,
        token_ids=tuple(token_ids),
    )
