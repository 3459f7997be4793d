"""Converting, distilling and measuring: against the reference in plain torch, over tiny models with random weights.

Their text means nothing to them, so what is held against the original is what it expects, not what the text says.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from swift_tiers.ops.base.errors import FAILURE, INTERRUPTED, USAGE
from swift_tiers.ops.commands.swiftkv.checkpoint import EXIT_HEAD, ModelDirectory
from swift_tiers.ops.commands.swiftkv.convert import network_of
from swift_tiers.ops.commands.swiftkv.distill import Recipe, Training, Watched
from swift_tiers.ops.commands.swiftkv.evaluate import distances, own_tensors, unchanged
from swift_tiers.ops.commands.swiftkv.fitting import KeyValueFit, rewired_weights
from swift_tiers.ops.commands.swiftkv.ranks import Ranks
from swift_tiers.ops.commands.swiftkv.text import windows_of
from swift_tiers.sglang_ext.models.later_layers import LaterLayers

from support.command_line import run_command
from support.scheduler_process import SchedulerProcess
from support.slow_link import prompt
from support.swiftkv_models import FAMILIES, LAYERS, Reference, taught_to_read, tiny_swiftkv
from support.tiers_of_a_model import arguments_of

WINDOWS = 96
SHORT = ["--length", "64", "--dtype", "float32"]


def network(directory, later=None):
    checkpoint = ModelDirectory(directory)
    tensors = dict(checkpoint.tensors())
    return network_of(checkpoint, tensors, checkpoint.later or later, "float32", Ranks(torch.device("cpu"))), tensors


def some_windows(seed, count=WINDOWS, length=64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, 250, (count, length), generator=generator)


@pytest.mark.parametrize(
    ("family", "group"),
    [
        ("qwen3", 2),
        ("qwen2", 1),
        *(pytest.param(*kind, marks=pytest.mark.exhaustive) for kind in (("llama", 1), ("llama", 2), ("qwen2", 2))),
    ],
)
def test_what_is_trained_is_what_is_served(tmp_path, family, group):
    """Both ways through the shared weights, held against models that share no code with them."""
    model = tiny_swiftkv(tmp_path / "model", family, group=group)
    base = tiny_swiftkv(tmp_path / "base", family, base=True)
    net, tensors = network(model)
    ids = prompt(7, 50)
    with torch.no_grad():
        front = net.front(torch.tensor([ids]))
        taught = net.logits(net.original(front))[0]
        learnt = net.logits(net.rewired(front, own_tensors(net, tensors, model)))[0]
    assert (taught - Reference(base).logits(ids)).abs().max() < 1e-3
    assert (learnt - Reference(model).logits(ids)).abs().max() < 1e-3


@pytest.mark.parametrize(
    "family", ["qwen2", *(pytest.param(one, marks=pytest.mark.exhaustive) for one in FAMILIES if one != "qwen2")]
)
def test_a_fit_is_nearest_to_the_keys_and_values_of_the_original(tmp_path, family):
    """Of all projections of that input, so nearer than what it began with; also where layers share."""
    later = LaterLayers(LAYERS, 4, 2)
    net, _ = network(tiny_swiftkv(tmp_path, family, base=True), later)
    windows = some_windows(1)
    fit = KeyValueFit(net)
    fit.add(windows[:48])
    fit.add(windows[48:])
    errors = {
        name: error_of(net, new, windows)
        for name, new in (("fitted", fit.solve()), ("begun", rewired_weights(net)), ("unchanged", unchanged(net)))
    }
    assert errors["fitted"] < 0.8 * errors["begun"]
    assert errors["fitted"] < 0.8 * errors["unchanged"]


def error_of(net, new, windows):
    """Mean square of what keys and values of all later layers are off by, not rotated and not normalised."""
    total = []
    with torch.no_grad():
        front = net.front(windows)
        stopped = net.stopped(front, new)

        def seen(layer, read):
            leader = net.later.leaders[net.later.leader_of(layer)]
            for part in "kv":
                wanted = net.projected(net.weights, layer, part, read)
                total.append((net.projected(new, leader, part, stopped, "_swiftkv") - wanted).square().mean())

        net.original(front, seen)
    return torch.stack(total).mean().item()


RECIPE = Recipe(
    learning_rate=3e-3, weight_decay=0.05, warm_up=0.05, temperature=2.0, batch=4, accumulate=1, epochs=1.0,
    minutes=None, seed=0, length=64, windows=WINDOWS, text="", model="",
)  # fmt: skip


def begun(directory):
    net, _ = network(tiny_swiftkv(directory, base=True), LaterLayers(LAYERS, 4, 1))
    return Training(net, rewired_weights(net), RECIPE)


def test_distilling_closes_part_of_the_gap(tmp_path):
    training = begun(tmp_path)
    held_out = Watched(training.network, some_windows(9, 4))
    windows = some_windows(1)
    before = training.look(held_out)
    while training.done < 1:
        training.step(windows)
    after = training.look(held_out)
    assert training.steps == RECIPE.steps == WINDOWS // 4
    assert after.kl < 0.95 * before.kl


def test_a_second_output_matrix_learns_to_say_the_same_sooner(tmp_path):
    """Its loss is added to the other one, whose gradients it does not change."""
    windows, held_out = some_windows(1), some_windows(9, 2)
    plain, both = begun(tmp_path / "plain"), begun(tmp_path / "both")
    both.new[EXIT_HEAD] = both.network.head.float().clone()
    both = Training(both.network, {name: tensor.detach() for name, tensor in both.new.items()}, RECIPE)
    before = exit_kl(both, held_out)
    for _ in range(8):
        plain.step(windows)
        both.step(windows)
    assert exit_kl(both, held_out) < 0.95 * before
    for name, tensor in plain.trained.items():
        assert torch.allclose(tensor, both.trained[name], atol=1e-6), name


@torch.no_grad()
def exit_kl(training, windows):
    net = training.network
    front = net.front(windows)
    expected = net.logits(net.original(front)).log_softmax(-1)
    early = (net.stopped(front, training.new) @ training.new[EXIT_HEAD].T).log_softmax(-1)
    return torch.nn.functional.kl_div(early, expected, reduction="batchmean", log_target=True).item()


def test_only_projections_of_later_layers_learn(tmp_path):
    training = begun(tmp_path)
    frozen = {name: tensor.clone() for name, tensor in training.network.weights.items()}
    norm = training.new["model.norm_swiftkv.weight"].clone()
    kept = {name: tensor.detach().clone() for name, tensor in training.trained.items()}
    training.step(some_windows(1))
    assert len(kept) == 3 * 4
    assert all(not torch.equal(kept[name], tensor) for name, tensor in training.trained.items())
    assert all(torch.equal(frozen[name], tensor) for name, tensor in training.network.weights.items())
    assert torch.equal(norm, training.new["model.norm_swiftkv.weight"])


def test_a_training_that_goes_on_ends_as_one_that_was_never_ended(tmp_path):
    windows = some_windows(1)
    whole, part = begun(tmp_path / "whole"), begun(tmp_path / "part")
    for _ in range(4):
        whole.step(windows)
    for _ in range(2):
        part.step(windows)
    (tmp_path / "state").mkdir()
    part.save(tmp_path / "state")
    other = begun(tmp_path / "other")
    other.resume(tmp_path / "state")
    for _ in range(2):
        other.step(windows)
    assert other.steps == 4
    for name, tensor in whole.trained.items():
        assert torch.equal(tensor, other.trained[name]), name


def test_gradients_of_several_batches_are_those_of_one(tmp_path):
    windows = some_windows(1)
    one, several = begun(tmp_path / "one"), begun(tmp_path / "several")
    several.recipe = RECIPE._replace(batch=2, accumulate=2)
    one.step(windows)
    several.step(windows)
    for name, tensor in one.trained.items():
        assert torch.allclose(tensor.grad, several.trained[name].grad, rtol=1e-3, atol=1e-7), name


@pytest.mark.exhaustive
def test_two_processes_train_as_one_does(tmp_path):
    """Each with half of every weight, and of every batch: they end where one process ends."""
    made, text = tiny_swiftkv(tmp_path / "made", "qwen3", group=2), "docs/operations.md"
    words = ["--text", text, *SHORT, "--epochs", "0.1", "--early-exit", "--save-every", "0.0001"]
    command = ["-m", "swift_tiers.ops", "swiftkv", "distill", str(made), *words, "--out"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    for name, launch in (("one", []), ("two", torchrun)):
        done = subprocess.run(
            [sys.executable, *launch, *command, str(tmp_path / name)], capture_output=True, text=True, env=environment
        )
        assert done.returncode == 0, done.stderr
    weights = [load_file(tmp_path / name / "model.safetensors") for name in ("one", "two")]
    before = load_file(made / "model.safetensors")
    for name, tensor in weights[0].items():
        assert torch.allclose(tensor, weights[1][name], atol=2e-4), name
    trained = "model.layers.4.self_attn.q_proj_swiftkv.weight"
    assert not torch.allclose(before[trained], weights[1][trained], atol=2e-4)


def test_a_model_from_its_original_to_the_server(capsys, tmp_path):
    """Convert, distil, measure by the commands; what comes out is served, and answers as the reference does."""
    base = tiny_swiftkv(tmp_path / "base", "qwen3", base=True)
    words = ["--text", "docs/operations.md", *SHORT]
    made, better = tmp_path / "made", tmp_path / "better"
    code, out, error = run_command(
        capsys, "swiftkv", "convert", str(base), "--layers", "50%", "--across", "2", "--out", str(made),
        "--fit-tokens", "1024", *words,
    )  # fmt: skip
    assert code == 0, error
    assert "prompts stop after layer 4 of 8, 2 later ones sharing; keys and values fitted to 1,024 tokens" in out
    code, out, error = run_command(
        capsys, "swiftkv", "distill", str(made), "--out", str(better), "--epochs", "0.2", "--learning-rate", "1e-3",
        "--early-exit", "--also", "docs/evaluation.md", *words,
    )  # fmt: skip
    assert code == 0, error
    assert f"made: {better} in " in out
    assert not (tmp_path / ".better.training").exists()
    training = json.loads((better / "training.json").read_text())
    assert training["steps"] > 1
    assert all(len(point) == 4 and point[3] is not None for point in training["curve"])
    found = {}
    for place in (made, better):
        code, out, error = run_command(capsys, "swiftkv", "eval", str(place), "--json", "--windows", "4", *words)
        assert code == 0, error
        found[place] = json.loads(out)["kinds"]
        assert (json.loads(out)["early_exit"] is not None) == (place is better)
    assert found[made]["original"]["kl"] == pytest.approx(0.0, abs=1e-6)
    assert found[made]["this one"]["kl"] < found[made]["rewired"]["kl"]
    assert found[better]["this one"]["kl"] < found[made]["this one"]["kl"]
    question = prompt(5, 300)
    threshold = 0.05
    override = json.dumps({"swiftkv_exit_threshold": threshold})
    with SchedulerProcess(arguments_of(better, "--json-model-override-args", override)) as process:
        answer = process(answered, question)
    reference = Reference(better)
    reference.config["swiftkv_exit_threshold"] = threshold
    logits = reference.logits(question + answer)
    assert answer == logits[len(question) - 1 : -1].argmax(-1).tolist()


def answered(s, question):
    return s.generate(question, 6)


def test_shares_of_layers():
    from swift_tiers.ops.commands.swiftkv.convert import later_layers

    class Source:
        def __init__(self, family, layers):
            self.family, self.layers = family, layers

    assert later_layers(Source("llama", 32), None, 1) == LaterLayers(32, 16, 1)
    assert later_layers(Source("qwen2", 48), None, 4) == LaterLayers(48, 36, 4)
    assert later_layers(Source("llama", 30), "25%", 1) == LaterLayers(30, 22, 1)
    assert later_layers(Source("llama", 30), "8", 2) == LaterLayers(30, 22, 2)


@pytest.mark.parametrize(
    ("lessons", "epochs", "closes"),
    [(60, 0.03, 0.3), pytest.param(900, 1.0, 0.5, marks=[pytest.mark.exhaustive, pytest.mark.timeout(600)])],
    ids=["seconds", "two minutes"],
)
def test_distilling_on_real_text_closes_part_of_the_gap(capsys, tmp_path, lessons, epochs, closes):
    """A model that has learnt to read Python's manual, rewired and not fitted, so that all is left to the training; by
    the commands, on text that neither of them has seen. What is held is the divergence from the original: of so small a
    model, the loss that rewiring adds is near what chance does."""
    base, made, better = tmp_path / "base", tmp_path / "made", tmp_path / "better"
    taught_to_read(base, lessons)
    code, _, error = run_command(
        capsys, "swiftkv", "convert", str(base), "--layers", "75%", "--out", str(made), "--fit-tokens", "0", *SHORT
    )
    assert code == 0, error
    code, _, error = run_command(
        capsys, "swiftkv", "distill", str(made), "--out", str(better), "--epochs", str(epochs), "--learning-rate",
        "3e-3", *SHORT,
    )  # fmt: skip
    assert code == 0, error
    code, out, error = run_command(capsys, "swiftkv", "eval", str(better), "--json", "--windows", "16", *SHORT)
    assert code == 0, error
    kl = {name: found["kl"] for name, found in json.loads(out)["kinds"].items()}
    assert kl["own norms"] > 1e-3, "rewiring changes too little: this tests nothing"
    assert kl["this one"] < (1 - closes) * kl["own norms"], kl


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["convert", "{base}", "--out", "{base}"], "is there already"),
        (["convert", "{base}", "--out", "{new}", "--layers", "100%"], "1 to 7 can be later ones"),
        (["convert", "{base}", "--out", "{new}", "--layers", "half"], "name for example 50%"),
        (["convert", "{made}", "--out", "{new}"], "is a SwiftKV model already"),
        (["convert", "{new}", "--out", "{new}"], "name the directory of a model, which has a config.json"),
        (["distill", "{base}", "--out", "{new}"], "is no SwiftKV model; make one by"),
        (["distill", "{made}", "--out", "{new}", "--epochs", "0"], "--epochs: 0.0 is no number above 0"),
        (["eval", "{base}"], "is no SwiftKV model; make one by"),
        (["eval", "{made}", "--lm-eval", "arc_easy"], "lm-eval is not here; pip install '.[lm-eval]' from a checkout"),
        (["eval", "{made}", "--device", "cuda", "--text", "docs", "--length", "64"], "torch finds no GPU here"),
        (["eval", "{made}", "--text", "{new}/none.txt"], "cannot be read"),
        (["eval", "{made}", "--text", "{made}/config.json"], "which are too few; name more --text"),
        (["convert", "{mla}", "--out", "{new}"], "of the kind 'deepseek_v2'"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(capsys, places, words, problem):
    if "--lm-eval" in words and find_spec("lm_eval") is not None:
        pytest.skip("lm-eval is here")
    if "cuda" in words and torch.cuda.is_available():
        pytest.skip("a GPU is here")
    code, _, error = run_command(capsys, "swiftkv", *(word.format(**places) for word in words))
    assert code == USAGE
    assert problem in error
    assert len(error.strip().splitlines()) == 1, error


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["convert", "{base}", "--out", "{new}", "--layers", "inf%"], "name for example 50%"),
        (["convert", "{base}", "--out", "{new}", "--fit-tokens", "-5"], "name 0 for no fit"),
        (["convert", "{base}", "--out", "{base}/config.json/x"], "--out: nothing can be written to"),
        (["distill", "{made}", "--out", "{new}", "--minutes", "nan"], "--minutes: nan is no number above 0"),
        (["distill", "{made}", "--out", "{new}", "--epochs", "inf"], "--epochs: inf is no number above 0"),
        (["distill", "{made}", "--out", "{new}", "--save-every", "-1"], "--save-every: -1.0 is no number above 0"),
        (["distill", "{made}", "--out", "{new}", "--weight-decay", "-1"], "--weight-decay: -1.0 is no decay"),
        (["distill", "{made}", "--out", "{new}", "--seed", "-1"], "--seed: -1 is no seed"),
        (["eval", "{made}", "--windows", "0"], "--windows: 0; name 1 or more"),
        (["eval", "{made}", "--length", "100000"], "the model has room for 8192 tokens"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(capsys, places, words, problem):
    """At once: before hours are spent on what cannot be written, or on a training without an end."""
    refused(capsys, [word.format(**places) for word in words], problem)


@pytest.mark.parametrize(
    ("name", "damage", "problem"),
    [
        ("config.json", lambda text: b"[1]", "it has no fields"),
        ("config.json", lambda text: text.replace(b'"num_hidden_layers"', b'"layers"'), "num_hidden_layers is None"),
        ("config.json", lambda text: text.replace(b'"silu"', b'"gelu"'), "name a model that has silu"),
        ("model.safetensors", lambda text: text[:1000], "cannot be read"),
        ("model.safetensors", lambda text: text.replace(b"embed_tokens", b"embed_xxxxxx"), "lacks model.embed_tokens"),
        ("tokenizer.json", lambda text: None, "has no tokenizer that transformers can read"),
    ],
)
def test_models_that_are_damaged_are_refused(capsys, places, tmp_path, name, damage, problem):
    model = tmp_path / "model"
    shutil.copytree(places["base"], model)
    left = damage((model / name).read_bytes())
    if left is None:
        for file in model.glob("tokenizer*"):
            file.unlink()
    else:
        (model / name).write_bytes(left)
    refused(capsys, ["convert", str(model), "--out", str(tmp_path / "new"), "--text", "docs/operations.md"], problem)
    assert not (tmp_path / "new").exists()


def refused(capsys, words, problem):
    code, _, error = run_command(capsys, "swiftkv", *words)
    assert code == USAGE, error
    lines = [line for line in error.splitlines() if line.startswith("swift-tiers: error: ")]
    assert len(lines) == 1, error
    assert problem in lines[0]


FEW = ["--text", "docs/operations.md", *SHORT]


def distilled(capsys, made, out, *more):
    return run_command(capsys, "swiftkv", "distill", made, "--out", str(out), "--epochs", "0.1", *FEW, *more)


def test_an_interrupted_command_goes_on_where_it_was(capsys, places, tmp_path, monkeypatch):
    """And ends with the weights of one that was not interrupted; of another text, or another model, it does not."""
    assert distilled(capsys, places["made"], tmp_path / "whole")[0] == 0
    step, done = Training.step, []

    def interrupted(training, windows):
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(training.steps)
        return step(training, windows)

    out, often = tmp_path / "part", ["--save-every", "0.0000001"]
    monkeypatch.setattr(Training, "step", interrupted)
    assert distilled(capsys, places["made"], out, *often)[0] == INTERRUPTED
    assert not out.exists()
    monkeypatch.undo()
    other = tiny_swiftkv(tmp_path / "other", seed=5)
    for made, text, problem in (
        (places["made"], "docs/evaluation.md", "a training with another"),
        (str(other), "docs/operations.md", "a training with another model"),
    ):
        words = ["distill", made, "--out", str(out), "--epochs", "0.1", *SHORT, "--text", text]
        refused(capsys, words, problem)
    assert distilled(capsys, places["made"], out, *often)[0] == 0
    whole, part = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "part"))
    assert all(torch.equal(tensor, part[name]) for name, tensor in whole.items())
    assert json.loads((out / "training.json").read_text())["steps"] > 3


def test_a_full_disk_loses_nothing(capsys, places, tmp_path):
    """One line says what is full; nothing half written stays; the same command goes on when there is room."""
    out = tmp_path / "out"
    for room in (32 << 10, 900 << 10):  # not even the state of a training; that, but no model
        with room_for(room):
            code, _, error = distilled(capsys, places["made"], out)
        assert code == FAILURE, error
        assert "make room, and give the same command again" in error.splitlines()[-1]
        assert not out.exists()
        assert {file.name for file in tmp_path.rglob("*.safetensors")} == set()
        assert not (tmp_path / ".out.training" / "new.pt").exists()
    assert distilled(capsys, places["made"], out)[0] == 0


@contextmanager
def room_for(size):
    """No file of this process can become larger, which fails writes as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.skipif(find_spec("lm_eval") is None, reason="needs lm-eval: pip install '.[lm-eval]'")
def test_tasks_of_lm_eval(capsys, places, tmp_path):
    """Of questions whose answers are scored by likelihood, beside the reference; the task's data is on this machine."""
    (tmp_path / "data.jsonl").write_text(
        "".join(json.dumps({"q": f"Which is {number}?", "gold": number % 2}) + "\n" for number in range(6))
    )
    (tmp_path / "task.yaml").write_text(
        f"task: of_ours\ndataset_path: json\ndataset_kwargs:\n  data_files: {tmp_path}/data.jsonl\n"
        "test_split: train\noutput_type: multiple_choice\ndoc_to_text: '{{q}}'\ndoc_to_target: gold\n"
        "doc_to_choice: ['this one', 'that one']\nmetric_list:\n  - metric: acc\n"
    )
    code, out, error = run_command(
        capsys, "swiftkv", "eval", places["made"], "--json", "--windows", "1", "--text", "docs/operations.md", *SHORT,
        "--lm-eval", "of_ours", "--lm-eval-tasks", str(tmp_path),
    )  # fmt: skip
    assert code == 0, error
    reference, right = Reference(Path(places["made"])), 0
    for number in range(6):
        scores = []
        for choice in (" this one", " that one"):
            before, whole = (encoded(places["made"], f"Which is {number}?{more}") for more in ("", choice))
            logprobs = reference.logprobs([end_of_text(places["made"]), *whole])
            scores.append(sum(float(logprobs[at, whole[at]]) for at in range(len(before), len(whole))))
        right += (scores[1] > scores[0]) == (number % 2)
    assert json.loads(out)["tasks"]["of_ours"]["acc"][1] == pytest.approx(right / 6)


def encoded(model, text):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model)(text, add_special_tokens=False)["input_ids"]


def end_of_text(model):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model).eos_token_id


def test_text_held_out_is_the_same_for_every_length(tmp_path):
    """What one length is fitted to, no other is measured on."""
    model = tiny_swiftkv(tmp_path / "model", base=True)
    text = tmp_path / "text.txt"
    text.write_text("".join(f"<{number:06}>" for number in range(9000)))  # eight bytes, eight tokens, each once

    def marks(windows):
        flat = bytes(ids_to_bytes(model, windows.flatten().tolist()))
        return {flat[start : start + 8] for start in range(0, len(flat), 8)}

    found = {length: windows_of(argparse.Namespace(text=[text], length=length), model) for length in (64, 128, 256)}
    read = set().union(*(marks(windows.read) for windows in found.values()))
    held_out = set().union(*(marks(windows.held_out) for windows in found.values()))
    assert read
    assert held_out
    assert not read & held_out


def ids_to_bytes(model, ids):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model).decode(ids).encode()


def test_two_do_not_train_the_same(capsys, places, tmp_path):
    import fcntl

    kept = tmp_path / ".new.training"
    kept.mkdir()
    with open(kept / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        code, _, error = run_command(
            capsys, "swiftkv", "distill", places["made"], "--out", str(tmp_path / "new"), *SHORT
        )
    assert code == FAILURE
    assert "another process trains" in error


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    root = tmp_path_factory.mktemp("places")
    (root / "mla").mkdir()
    (root / "mla" / "config.json").write_text('{"model_type": "deepseek_v2", "num_hidden_layers": 4}')
    base, made = tiny_swiftkv(root / "base", base=True), tiny_swiftkv(root / "made")
    return {
        name: str(place) for name, place in (("base", base), ("made", made), ("new", root / "n"), ("mla", root / "mla"))
    }


def test_distances_are_none_where_nothing_was_rewired(tmp_path):
    """A later layer that reads what the original one reads is the original."""
    net, _ = network(tiny_swiftkv(tmp_path, base=True), LaterLayers(LAYERS, LAYERS - 1, 1))
    found = distances(net, {"rewired": unchanged(net)}, some_windows(3, 2))
    assert found["rewired"].kl == pytest.approx(0.0, abs=1e-6)
    assert found["rewired"].agreement == 1.0
