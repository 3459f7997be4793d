"""Tasks of lm-eval (EleutherAI's harness) for `swiftkv eval --lm-eval`: of the original, and of the SwiftKV model.

Whole texts are computed at once without a cache: fine for what is answered by likelihood, slow for answers of many
tokens. lm-eval gets the tasks' data where it keeps it, or from its hub.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from lm_eval import simple_evaluate
from lm_eval.api.model import LM
from lm_eval.tasks import TaskManager

from ...base.errors import CommandError
from .network import TeacherAndPupil, Tensors


class Answering(LM):  # type: ignore[misc]  # lm-eval says nothing of its types
    """One of the two ways through a model's weights."""

    def __init__(self, network: TeacherAndPupil, new: Tensors | None, tokenizer: Any) -> None:
        """`new`: a SwiftKV model's own tensors; None: the original."""
        super().__init__()
        self._network, self._new, self._tokenizer = network, new, tokenizer
        self._longest = int(network.config.max_position_embeddings)

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        found = []
        for context, continuation in (one.args for one in requests):
            kept = len(context) - len(context.rstrip())
            if kept:  # a token begins with the space before it
                context, continuation = context[:-kept], context[-kept:] + continuation
            whole, before = self._ids(context + continuation), self._ids(context)
            first = len(before) if context else 0
            scores, greedy = self._scores(whole)
            found.append((float(scores[first:].sum()), bool(greedy[first:].all())))
        return found

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        return [float(self._scores(self._ids(one.args[0]))[0].sum()) for one in requests]

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        return [self._generated(*one.args) for one in requests]

    def _generated(self, context: str, words: dict[str, Any]) -> str:
        """Greedy, up to one of the stops."""
        stops = words.get("until") or []
        stops = [stops] if isinstance(stops, str) else stops
        ids, begun = self._ids(context), ""
        prompt = len(ids)
        for _ in range(int(words.get("max_gen_toks", 256))):
            token = int(self._logits(ids)[-1].argmax())
            if token == self._tokenizer.eos_token_id:
                break
            ids.append(token)
            begun = self._tokenizer.decode(ids[prompt:])
            if at := [begun.index(stop) for stop in stops if stop in begun]:
                return begun[: min(at)]
        return begun

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def _scores(self, ids: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Of each token, its log probability, and whether it is the likeliest, behind those before it and an end of
        text."""
        logits = self._logits([self._tokenizer.eos_token_id, *ids][:-1]).log_softmax(-1)
        wanted = torch.tensor(ids[-len(logits) :], device=logits.device)
        scores = logits.gather(1, wanted[:, None])[:, 0]
        missing = len(ids) - len(logits)  # what a model's context had no room for counts nothing
        pad = torch.nn.functional.pad
        return pad(scores, (missing, 0)), pad(logits.argmax(-1) == wanted, (missing, 0), value=True)

    @torch.no_grad()
    def _logits(self, ids: list[int]) -> torch.Tensor:
        """`[tokens, vocabulary]`, float32, of the last tokens that the model has room for."""
        network = self._network
        front = network.front(torch.tensor([ids[-self._longest :]]))
        hidden = network.original(front) if self._new is None else network.rewired(front, self._new)
        return network.logits(hidden)[0].float()


def results(
    network: TeacherAndPupil, new: Tensors, tokenizer: Any, tasks: Sequence[str], place: str | None, limit: int | None
) -> dict[str, dict[str, tuple[float, float]]]:
    """By task and metric, of the original and of the SwiftKV model. `place`: a folder with more tasks; `limit`:
    questions of each. Raises CommandError where lm-eval has no such task, or not its data."""
    manager = TaskManager(include_path=place)
    found = []
    try:
        for own in (None, new):
            model = Answering(network, own, tokenizer)
            answer = simple_evaluate(
                model=model, tasks=list(tasks), task_manager=manager, limit=limit, bootstrap_iters=0
            )
            found.append(answer["results"])
    except Exception as error:  # noqa: BLE001 - tasks raise what they like
        raise CommandError(
            f"swiftkv eval: --lm-eval: {', '.join(tasks)}: {' '.join(str(error).split())[:200]}; name a task of "
            "`lm_eval ls tasks` whose data is on this machine or within its reach"
        ) from None
    original, this = found
    return {
        task: {
            name.removesuffix(",none"): (float(value), float(this[task][name]))
            for name, value in one.items()
            if isinstance(value, (int, float)) and "stderr" not in name
        }
        for task, one in original.items()
    }
