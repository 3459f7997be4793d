"""A real model in two and three processes: computed together, forgotten, restored by each stage alone, and gone on with
as if it had never been split."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.pipeline import CHUNK, LAYERS, PAGE_TOKENS, PAGES, make_model, make_prompt
from support.pipelines import Pipeline

TOKENS = PAGES * PAGE_TOKENS


@pytest.fixture(scope="module")
def unsplit() -> torch.Tensor:
    """The logits behind the prompt, of the model in one piece."""
    with torch.inference_mode():
        logits: torch.Tensor = make_model()(make_prompt()).logits[0, -1]
    return logits


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory, unsplit: torch.Tensor) -> Callable[[int], Path]:
    """Device files of a pipeline that has computed the prompt and ended; made once for each number of stages."""
    made: dict[int, Path] = {}

    def store(stages: int) -> Path:
        if stages not in made:
            made[stages] = tmp_path_factory.mktemp(f"pipeline{stages}")
            assert Pipeline(made[stages], stages).run("store")[-1]["token"] == int(unsplit.argmax())
        return made[stages]

    return store


@pytest.fixture
def pipeline(stored: Callable[[int], Path], tmp_path: Path) -> Callable[[int], Pipeline]:
    """The same, for this test to do with as it likes."""

    def copy(stages: int) -> Pipeline:
        shutil.copytree(stored(stages), tmp_path / "pipeline")
        return Pipeline(tmp_path / "pipeline", stages)

    return copy


def of_pages(kv: np.ndarray, pages: list[int]) -> np.ndarray:
    """[page][layer][k|v][token][kv_head][head_dim]."""
    return np.stack([kv[:, :, page * PAGE_TOKENS : (page + 1) * PAGE_TOKENS] for page in pages])


def check_restored(pipeline: Pipeline, number: int, told: dict[str, Any]) -> None:
    """What a stage has after its restore is what it had when it computed."""
    assert not told["talked"], "no stage can have asked another"
    assert sorted(told["copied"] + told["computed"]) == list(range(told["restored"]))
    before, after = pipeline.saved("store", number), pipeline.saved("restore", number)
    assert before.shape[0] == LAYERS // pipeline.stages
    assert after.shape[2] == told["restored"] * PAGE_TOKENS
    if told["copied"]:
        assert np.array_equal(of_pages(before, told["copied"]), of_pages(after, told["copied"]))
    np.testing.assert_allclose(after, before[:, :, : after.shape[2]], atol=1e-4)


def check_next_token(told: dict[str, Any], unsplit: torch.Tensor) -> None:
    assert told["token"] == int(unsplit.argmax())
    np.testing.assert_allclose(told["logits"], unsplit.numpy(), atol=1e-3)


@pytest.mark.parametrize("stages", [2, pytest.param(3, marks=pytest.mark.exhaustive)])
def test_every_stage_restores_alone_and_the_next_token_is_the_same(
    pipeline: Callable[[int], Pipeline], unsplit: torch.Tensor, stages: int
) -> None:
    split = pipeline(stages)
    answers = split.run("restore", together=True)
    for number, told in enumerate(answers):
        assert (told["state"], told["restored"]) == ("DONE", PAGES)
        assert told["computed"][0] == 0, "the front is computed"
        assert told["copied"][-1] == PAGES - 1, "the back is loaded"
        assert told["recomputed_together"] == 0
        check_restored(split, number, told)
    check_next_token(answers[-1], unsplit)


@pytest.mark.exhaustive  # that a stage restores alone fails in `test_every_stage_restores_alone…`, too
@pytest.mark.parametrize("number", [1, 2])
def test_a_stage_restores_while_no_other_is_there(pipeline: Callable[[int], Pipeline], number: int) -> None:
    split = pipeline(3)
    [told] = split.run("restore", [number])
    assert (told["state"], told["restored"]) == ("DONE", PAGES)
    assert told["computed"][0] == 0
    check_restored(split, number, told)


def test_a_page_whose_activations_are_damaged_is_loaded(pipeline: Callable[[int], Pipeline]) -> None:
    split = pipeline(2)
    split.damage(1, "boundary", split.saved("store", 1, "inputs")[2 * PAGE_TOKENS :][:PAGE_TOKENS])
    [told] = split.run("restore", [1])
    assert (told["state"], told["restored"]) == ("DONE", PAGES)
    assert told["computed"][:2] == [0, 1]
    assert 2 in told["copied"]
    check_restored(split, 1, told)


def test_where_a_stage_can_have_neither_the_pipeline_computes_the_rest(
    pipeline: Callable[[int], Pipeline], unsplit: torch.Tensor
) -> None:
    split = pipeline(2)
    lost = CHUNK + 1
    split.damage(1, "boundary", split.saved("store", 1, "inputs")[lost * PAGE_TOKENS :][:PAGE_TOKENS])
    split.damage(1, "kv", split.saved("store", 1)[:, :, lost * PAGE_TOKENS :][:, :, :PAGE_TOKENS])
    answers = split.run("restore", together=True)
    assert [(told["state"], told["restored"]) for told in answers] == [("DONE", PAGES), ("STUCK", lost)]
    for number, told in enumerate(answers):
        assert told["recomputed_together"] == PAGES - lost
        assert told["left"] == make_prompt().shape[1]
        check_restored(split, number, told)
    check_next_token(answers[-1], unsplit)
