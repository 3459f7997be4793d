"""The namespace differs whenever a byte of KV could mean something else, and only then."""

from __future__ import annotations

import os
import shutil
from types import SimpleNamespace

import msgspec
import pytest

from swift_tiers.ops.model import tiny_model
from swift_tiers.sglang_ext.identity import config_digest, loading_digest, weights_digest

from support.engine import GEOMETRY, namespace


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("model"))


def test_the_digest_of_equal_weights_is_equal_wherever_they_lie(model, tmp_path):
    copy = tmp_path / "elsewhere"
    shutil.copytree(model, copy)
    for mode in ("sampled", "full"):
        assert weights_digest(str(model), "auto", mode) == weights_digest(str(copy), "auto", mode)


def test_a_change_of_any_tensor_changes_the_sampled_digest(model, tmp_path):
    from safetensors.torch import load_file, save_file

    reference = weights_digest(str(model), "auto", "sampled")
    (path,) = model.glob("*.safetensors")
    tensors = load_file(path)
    for name in tensors:
        changed = {key: value.clone() for key, value in tensors.items()}
        changed[name] += 1e-3
        directory = tmp_path / name
        directory.mkdir()
        save_file(changed, directory / path.name, metadata={"format": "pt"})
        assert weights_digest(str(directory), "auto", "sampled") != reference, name


def test_a_file_written_anew_changes_the_sampled_digest_and_not_the_full_one(model, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(model, copy)
    before = {mode: weights_digest(str(copy), "auto", mode) for mode in ("sampled", "full")}
    (path,) = copy.glob("*.safetensors")
    os.utime(path, ns=(1, 1))
    assert weights_digest(str(copy), "auto", "sampled") != before["sampled"]
    assert weights_digest(str(copy), "auto", "full") == before["full"]


def test_a_revision_of_the_hub_counts(tmp_path):
    """Two revisions in the local hub cache: the digest is of the one that the server loads."""
    repository = tmp_path / "hub" / "models--owner--name"
    for revision, seed in (("a" * 40, b"one"), ("b" * 40, b"two")):
        snapshot = repository / "snapshots" / revision
        snapshot.mkdir(parents=True)
        (snapshot / "model.bin").write_bytes(seed * 5000)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("a" * 40)
    digests = {
        revision: weights_digest("owner/name", "auto", "full", revision=revision, download_dir=str(tmp_path / "hub"))
        for revision in (None, "a" * 40, "b" * 40, "c" * 40)
    }
    assert digests[None] == digests["a" * 40] != digests["b" * 40]
    assert digests["c" * 40].startswith("unnamed-"), "a revision that is not there is not another one"


def test_how_weights_are_loaded_counts(tmp_path):
    def digest(**changes):
        arguments = {"load_format": "auto", "quantization": None, "lora_paths": None, **changes}
        return loading_digest(SimpleNamespace(**arguments), "full")

    scales, adapter = tmp_path / "scales.json", tmp_path / "adapter"
    adapter.mkdir()
    seen = {digest(), digest(quantization="fp8"), digest(torchao_config="int4wo"), digest(rl_quant_profile="x")}
    for content in ("1", "2"):
        scales.write_text(content)
        seen.add(digest(quantization_param_path=str(scales)))
        # Trained anew in its place: SGLang's own name for it stays the same.
        (adapter / "adapter_model.bin").write_bytes(content.encode() * 100)
        for form in ([f"a={adapter}"], [{"lora_name": "a", "lora_path": str(adapter)}], {"a": str(adapter)}):
            seen.add(digest(lora_paths=form))
    assert len(seen) == 4 + 2 + 2 * 2  # "a=path" is a name of its own; the two mappings mean the same
    assert digest() in seen


def test_the_full_digest_sees_a_single_byte(model, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(model, copy)
    (path,) = copy.glob("*.safetensors")
    content = bytearray(path.read_bytes())
    content[len(content) * 2 // 3] ^= 1
    path.write_bytes(content)
    assert weights_digest(str(model), "auto", "full") != weights_digest(str(copy), "auto", "full")


def test_weights_that_no_file_describes_are_never_shared(model, tmp_path):
    assert weights_digest(str(model), "dummy", "sampled") != weights_digest(str(model), "dummy", "sampled")
    assert weights_digest(str(tmp_path), "auto", "sampled") != weights_digest(str(tmp_path), "auto", "sampled")


def test_configuration_that_changes_no_kv_is_left_out():
    config = {"hidden_size": 64, "rope_theta": 1e4, "_name_or_path": "/a", "transformers_version": "5"}
    assert config_digest(config) == config_digest({**config, "_name_or_path": "/b", "transformers_version": "6"})
    assert config_digest(config) != config_digest({**config, "rope_theta": 1e6})


def test_every_field_of_the_namespace_counts():
    digests = {namespace().digest()}
    changes = [
        {"model": "other"}, {"weights": "other"}, {"dtype": "bfloat16"}, {"first_layer": 4}, {"kv_heads": 1},
        {"head_dim": 64}, {"rank": "tp1/2"}, {"quantization": "fp8"}, {"format_version": 2}, {"loading": "fp8"},
        {"geometry": msgspec.structs.replace(GEOMETRY, tokens=8)},
        {"geometry": msgspec.structs.replace(GEOMETRY, layers=3)},
    ]  # fmt: skip
    for change in changes:
        digests.add(namespace(**change).digest())
    assert len(digests) == 1 + len(changes)
    assert namespace().digest() in digests
