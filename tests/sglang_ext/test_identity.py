"""The namespace differs whenever a byte of KV could mean something else, and only then."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
import torch

from swift_tiers.ops.base.model import tiny_model
from swift_tiers.radix_tiering.base.errors import ConfigError
from swift_tiers.radix_tiering.base.read_config import parse_config
from swift_tiers.sglang_ext.build import identity
from swift_tiers.sglang_ext.build.assembly import TREE_FACTORY, Rank, check_hooked, current_rank, last_rank
from swift_tiers.sglang_ext.build.content_names import ContentNames
from swift_tiers.sglang_ext.build.identity import config_digest, loading_digest, software
from swift_tiers.sglang_ext.build.settings import settings
from swift_tiers.sglang_ext.build.weights import LoadedAdapters, LoadedFiles, Source, draft_of, sources_of

from support.clocks import file_clock_moved
from support.engine import GEOMETRY, namespace


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def copy(model, tmp_path):
    return Path(shutil.copytree(model, tmp_path / "copy"))


@pytest.fixture
def names(tmp_path):
    """Remembers at once: files of tests are younger than those of servers."""
    return ContentNames(tmp_path / "cache" / "names", clock=lambda: 2e10)


def digest(place, names, load_format: str = "auto", **more) -> str:
    source = Source(str(place), load_format, **more)
    return LoadedFiles([source], names).digest(source)


def flip_bit(path: Path) -> None:
    """Change one bit, and nothing else that can be set: size and times are restored."""
    file_clock_moved(path)
    before = path.stat()
    content = bytearray(path.read_bytes())
    content[len(content) * 2 // 3] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


# ---- weights ----


def test_equal_bytes_agree_wherever_they_lie_and_whenever_they_were_written(model, copy, names):
    for path in copy.iterdir():
        os.utime(path, ns=(1, 1))
    assert digest(model, names) == digest(copy, names)
    assert digest(model, names) == digest(copy, ContentNames(None)) == digest(copy, ContentNames(None, read_all=True))


@pytest.mark.parametrize("remembered", [True, False])
def test_one_changed_bit_is_another_identity_though_size_and_time_stay(copy, names, remembered):
    names = names if remembered else ContentNames(None)
    before = digest(copy, names)
    (path,) = copy.glob("*.safetensors")
    flip_bit(path)
    assert digest(copy, names) != before
    flip_bit(path)
    assert digest(copy, names) == before


def test_a_name_of_the_files_counts(copy, names):
    before = digest(copy, names)
    (path,) = copy.glob("*.safetensors")
    path.rename(copy / "other.safetensors")
    assert digest(copy, names) != before


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("hf_quant_config.json", '{"kv_cache_quant_algo": "FP8"}', '{"kv_cache_quant_algo": null}'),
        ("quantize_config.json", '{"bits": 4, "group_size": 128}', '{"bits": 4, "group_size": 32}'),
        ("modeling_mine.py", "def f(): 1", "def f(): 2"),
        ("tokenizer.model", "1", "2"),
    ],
)
def test_configurations_and_code_beside_the_weights_count(copy, names, name, one, other):
    seen = {digest(copy, names)}
    for content in (one, other):
        file_clock_moved(max(copy.iterdir(), key=lambda path: path.stat().st_ctime_ns))
        (copy / name).write_text(content)
        seen.add(digest(copy, names))
    assert len(seen) == 3


def make_hub(folder: Path, revisions: dict[str, str]) -> Path:
    """A hub cache: a revision's only weight file is a link to a blob that is called as it says."""
    repository = folder / "hub" / "models--owner--name"
    (repository / "blobs").mkdir(parents=True)
    for revision, blob in revisions.items():
        (repository / "blobs" / blob).write_bytes(revision.encode() * 100)
        snapshot = repository / "snapshots" / revision
        snapshot.mkdir(parents=True)
        (snapshot / "model.bin").symlink_to(f"../../blobs/{blob}")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(next(iter(revisions)))
    return repository


def test_a_revision_of_the_hub_counts_and_is_not_read(tmp_path, names):
    """Two revisions in the local hub cache: the digest is of the one that the server loads."""
    make_hub(tmp_path, {"a" * 40: "1" * 64, "b" * 40: "2" * 64})
    digests = {
        revision: digest("owner/name", names, revision=revision, download_dir=str(tmp_path / "hub"))
        for revision in (None, "a" * 40, "b" * 40, "c" * 40)
    }
    assert digests[None] == digests["a" * 40] != digests["b" * 40]
    assert digests["c" * 40].startswith("unnamed-"), "a revision that is not there is not another one"
    assert names.bytes_read == 0


def test_a_folder_and_the_hub_agree_about_equal_bytes(tmp_path, names):
    import hashlib

    revision = "a" * 40
    sha256 = hashlib.sha256(revision.encode() * 100).hexdigest()
    repository = make_hub(tmp_path, {revision: sha256})
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "model.bin").write_bytes(revision.encode() * 100)
    assert digest(folder, names) == digest(repository / "snapshots" / revision, names)
    assert names.bytes_read == len(revision) * 100, "the folder's file alone was read"


def test_a_blob_that_was_written_through_its_link_is_read(tmp_path, names):
    """As a tool does that saves a model in the folder that it was loaded from."""
    revision = "a" * 40
    snapshot = make_hub(tmp_path, {revision: "1" * 64}) / "snapshots" / revision
    before = digest(snapshot, names)
    flip_bit(snapshot / "model.bin")
    assert digest(snapshot, names) != before
    assert names.bytes_read


def test_full_believes_no_name(tmp_path):
    revision = "a" * 40
    snapshot = make_hub(tmp_path, {revision: "1" * 64}) / "snapshots" / revision
    names = ContentNames(tmp_path / "cache", read_all=True)
    for _ in range(2):
        digest(snapshot, names)
    assert names.bytes_read == 2 * len(revision) * 100


def test_weights_that_no_file_describes_are_never_shared(model, tmp_path, names):
    assert digest(model, names, "dummy") != digest(model, names, "dummy")
    assert digest(tmp_path, names) != digest(tmp_path, names)


def test_sampled_is_refused_with_the_remedy():
    with pytest.raises(ConfigError, match=r'^identity\.weights: "sampled" is no longer offered.*use "content"'):
        parse_config({"identity": {"weights": "sampled"}})
    assert parse_config({}).identity.weights == "content"
    assert parse_config({"identity": {"weights": "full"}}).identity.weights == "full"


# ---- while they are loaded ----


@pytest.mark.parametrize("change", ["bit", "removed", "added", "replaced"])
def test_files_that_change_while_they_are_loaded_have_no_name(copy, names, caplog, change):
    source = Source(str(copy))
    loaded = LoadedFiles([source], names)
    loaded._reader.join()
    (path,) = copy.glob("*.safetensors")
    if change == "bit":
        flip_bit(path)
    elif change == "removed":
        path.unlink()
        path.with_name("other.bin").write_bytes(b"x")
    elif change == "added":
        (copy / "more.safetensors").write_bytes(b"x")
    else:
        shutil.copy(path, copy / "new")
        (copy / "new").rename(path)
    assert loaded.digest(source).startswith("unnamed-")
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "its pages serve this process only" in line
    assert not digest(copy, names).startswith("unnamed-"), "the next start knows them"


def test_files_that_loading_fetches_into_the_hubs_cache_have_names(tmp_path, names):
    hub = tmp_path / "hub"
    source = Source("owner/name", download_dir=str(hub))
    loaded = LoadedFiles([source], names)
    loaded._reader.join()
    make_hub(tmp_path, {"a" * 40: "1" * 64})
    assert loaded.digest(source) == digest("owner/name", names, download_dir=str(hub))


def test_a_hub_that_moves_while_it_is_loaded_has_no_name(tmp_path, names):
    repository = make_hub(tmp_path, {"a" * 40: "1" * 64, "b" * 40: "2" * 64})
    source = Source("owner/name", download_dir=str(tmp_path / "hub"))
    loaded = LoadedFiles([source], names)
    (repository / "refs" / "main").write_text("b" * 40)
    assert loaded.digest(source).startswith("unnamed-")


def test_a_server_looks_before_it_loads(copy, names, monkeypatch):
    """What `server_namespace` says is of the files that `begin_loading` saw."""
    arguments = SimpleNamespace(model_path=str(copy), load_format="auto", revision=None, download_dir=None)
    monkeypatch.setattr(identity, "_loaded", None)
    monkeypatch.setattr(identity, "cache_directory", lambda: None)
    identity.begin_loading(arguments, "content")
    (path,) = copy.glob("*.safetensors")
    flip_bit(path)
    assert identity._loaded is not None
    assert identity._loaded.digest(identity.sources_of(arguments)[0]).startswith("unnamed-")


@pytest.mark.parametrize("mode", ["off", "client"])
def test_weights_that_another_process_keeps_have_no_name(copy, names, mode):
    """It has loaded them some time ago, perhaps from files that were others then."""
    arguments = SimpleNamespace(
        model_path=str(copy), load_format="auto", revision=None, download_dir=None, weight_cache_mode=mode
    )
    (source,) = sources_of(arguments)
    loaded = LoadedFiles([source], names)
    assert loaded.digest(source).startswith("unnamed-") is (mode == "client")


# ---- which part of the model ----


def test_ranks_that_compute_different_parts_of_the_model_share_no_page():
    """The device files have the rank in their names; the pages that servers lend each other have not."""
    parts = [Rank(tensor, size, 0, 1).identity for size in (1, 2, 4) for tensor in range(size)]
    assert len({namespace(rank=part).digest() for part in parts}) == len(parts)
    assert Rank(1, 2, 0, 2).identity == Rank(1, 2, 1, 2).identity, "data-parallel ranks compute the same"


def test_groups_of_data_parallel_attention_are_as_replicas(monkeypatch):
    """Of eight ranks two groups of four, of each of two replicas."""
    import sglang.srt.runtime_context

    found = {}
    for rank in range(8):
        for replica in range(2):
            sizes = {
                "tp_rank": rank, "tp_size": 8, "attn_tp_size": 4, "attn_dp_size": 2, "attn_dp_rank": rank // 4,
                "attn_dcp_size": 1, "dp_rank": replica, "dp_size": 2,
            }  # fmt: skip
            monkeypatch.setattr(
                sglang.srt.runtime_context, "get_parallel", lambda sizes=sizes: SimpleNamespace(**sizes)
            )
            found[replica, rank] = current_rank()
    assert len({rank.name for rank in found.values()}) == 16
    assert {rank.name for rank in found.values()} == set(found[0, 0].names())
    assert found[1, 5] == Rank(1, 4, 3, 4)
    assert {rank.total for rank in found.values()} == {16}


@pytest.mark.parametrize(
    ("given", "last"),
    [
        ({"tp_size": 4, "dp_size": 2}, Rank(3, 4, 1, 2)),
        ({"tp_size": 8, "dp_size": 2, "attn_dp_size": 4}, Rank(1, 2, 7, 8)),
        ({"tp_size": 8, "dp_size": 4, "enable_dp_attention": True}, Rank(1, 2, 3, 4)),
    ],
)
def test_how_many_ranks_a_server_has(given, last):
    plain = {"tp_size": 1, "dp_size": 1, "attn_dp_size": 1, "enable_dp_attention": False}
    assert last_rank(SimpleNamespace(**plain | given)) == last


@pytest.mark.parametrize("split", [{"attn_tp_size": 2}, {"attn_dcp_size": 2}])
def test_a_rank_whose_kv_is_not_split_by_heads_alone_is_refused(monkeypatch, split):
    import sglang.srt.runtime_context

    sizes = {"tp_rank": 1, "tp_size": 4, "dp_rank": 0, "dp_size": 1, "attn_tp_size": 4, "attn_dcp_size": 1}
    monkeypatch.setattr(sglang.srt.runtime_context, "get_parallel", lambda: SimpleNamespace(**sizes))
    assert current_rank() == Rank(1, 4, 0, 1)
    sizes.update(split)
    with pytest.raises(ConfigError, match=r"otherwise than by heads.*use --tp-size alone"):
        current_rank()


def test_a_rank_that_sglang_began_without_its_plugins_is_refused(monkeypatch):
    """Its tree is SGLang's own: the tiers would take memory and devices, and serve nobody."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    monkeypatch.setattr(HookRegistry, "_patched", set())
    with pytest.raises(ConfigError, match="without its plugins"):
        check_hooked()
    monkeypatch.setattr(HookRegistry, "_patched", {TREE_FACTORY})
    check_hooked()


def test_who_finds_nothing_of_what_was_loaded_says_so(tmp_path, names, caplog):
    """Its pages would be cold after every restart, and nobody would see why."""
    source = Source(str(tmp_path))
    digests = {LoadedFiles([source], names).digest(source) for _ in range(2)}
    assert len(digests) == 2
    assert "none is found again after a restart" in caplog.text
    caplog.clear()
    LoadedFiles([], names).digest(Source(str(tmp_path), "dummy"))
    assert not caplog.records, "these are no files' weights, as was asked for"


# ---- how they are loaded ----


def test_how_weights_are_loaded_counts(tmp_path, names):
    def loading(**changes):
        view = SimpleNamespace(**{"load_format": "auto", "quantization": None, "lora_paths": None, **changes})
        return loading_digest(view, LoadedFiles([], names), settings(view, is_quantized=False))

    scales = tmp_path / "scales.json"
    seen = {loading(), loading(quantization="fp8"), loading(model_impl="transformers"), loading(rl_quant_profile="x")}
    for content in ("1", "2"):
        file_clock_moved(tmp_path)
        scales.write_text(content)
        seen.add(loading(quantization_param_path=str(scales)))
    assert len(seen) == 4 + 2
    assert loading(lora_paths=["a=/an/adapter"]) in seen, "adapters are told apart by their requests' keys"


def test_a_draft_s_weights_count_as_its_kv_lies_in_the_pages(copy, model, names):
    """And nothing of it does where none drafts, or what it drafts from is tokens."""

    def loading(drafting="EAGLE", **changes):
        arguments = {
            "model_path": str(model),
            "revision": None,
            "download_dir": None,
            "load_format": "auto",
            "speculative_algorithm": "EAGLE",
            "speculative_draft_model_path": str(copy),
            "speculative_draft_model_revision": None,
            "speculative_draft_load_format": None,
            **changes,
        }
        given = SimpleNamespace(**arguments)
        return loading_digest(given, LoadedFiles(sources_of(given), names), {}, drafting)

    plain = loading(speculative_algorithm=None)
    assert loading(speculative_algorithm="NGRAM") == plain
    seen = [
        plain,
        loading(),
        loading("STANDALONE"),
        loading(speculative_draft_model_quantization="fp8"),
        loading(speculative_draft_window_size=128),
        loading(speculative_draft_attention_backend="triton"),
        loading(speculative_draft_load_format="dummy"),
    ]
    assert loading() == loading(speculative_draft_model_path=None), "its own model drafts, of equal bytes"
    flip_bit(copy / "model.safetensors")
    seen.append(loading())
    assert len(set(seen)) == len(seen)


@pytest.mark.parametrize(
    ("path", "revision", "loaded"),
    [("org/draft", None, "main"), ("org/draft", "v1", "v1"), (None, None, "v2")],
    ids=["named", "of a revision", "in the model"],
)
def test_a_draft_is_of_the_revision_that_sglang_loads(path, revision, loaded):
    """One that is named without a revision is of `main`, whatever the model is of."""
    given = SimpleNamespace(
        model_path="org/model",
        revision="v2",
        download_dir=None,
        load_format="auto",
        speculative_algorithm="EAGLE3",
        speculative_draft_model_path=path,
        speculative_draft_model_revision=revision,
        speculative_draft_load_format=None,
    )
    assert draft_of(given) == Source(path or "org/model", "auto", loaded)


def test_what_else_changes_kv_with_the_same_files_counts(names):
    def loading(attention="", **changes):
        view = SimpleNamespace(**changes)
        given = settings(view, is_quantized=False) | {"attention": attention}
        return loading_digest(view, LoadedFiles([], names), given)

    assert loading(lora_target_modules=["all"]) == loading(), "it is a part of what adapters are"
    seen = {loading(), loading(experts_shared_outer_loras=True)}
    seen |= {loading("triton, triton"), loading("fa3, triton"), loading(model_loader_extra_config='{"a": 1}')}
    assert len(seen) == 5
    for given in (
        {"kt_weight_path": "/experts"},
        {"modelopt_checkpoint_restore_path": "/restored"},
        {"model_loader_extra_config": '{"qlora_adapter_name_or_path": "owner/adapter"}'},
        {"model_loader_extra_config": {"presharded_path": "/dump"}},
        {"forward_hooks": [{"target_modules": ["model.layers.0"], "hook_factory": "theirs:make"}]},
    ):
        assert loading(**given) != loading(**given), "nobody has looked at what lies there"


@pytest.mark.parametrize("argument", ["quantization_param_path", "rl_quant_profile"])
def test_a_file_of_settings_that_changes_while_the_model_is_loaded_has_no_name(tmp_path, names, argument):
    path = tmp_path / "settings.json"
    path.write_text("1")
    arguments = SimpleNamespace(**{argument: str(path)})
    known = loading_digest(arguments, LoadedFiles([], names, [str(path)]), {})
    assert known == loading_digest(arguments, LoadedFiles([], names), {})
    loaded = LoadedFiles([], names, [str(path)])
    path.write_text("2")
    seen = {loading_digest(arguments, loaded, {}) for _ in range(2)} | {
        loading_digest(arguments, LoadedFiles([], names), {})
    }
    assert len(seen | {known}) == 4


@pytest.mark.parametrize("load_format", ["presharded", "npcache", "local_cached", "of a later release"])
def test_formats_that_load_other_files_than_the_folders_have_no_name(copy, names, load_format):
    """A dump of weights that was made there once is loaded whatever the files beside it have become."""
    assert digest(copy, names, load_format) != digest(copy, names, load_format)


def test_the_attention_backend_is_the_one_that_runs(monkeypatch):
    arguments = SimpleNamespace(
        attention_backend=None,
        prefill_attention_backend=None,
        decode_attention_backend=None,
        dsa_prefill_backend=None,
        dsa_decode_backend=None,
        _resolved_overrides=(),
    )
    chosen = identity.attention_backends(arguments)
    arguments._resolved_overrides = [("default", {"attention_backend": "triton"})]
    assert (chosen, identity.attention_backends(arguments)) == ("None, None", "triton, triton")
    arguments.decode_attention_backend = "fa3"
    assert identity.attention_backends(arguments) == "triton, fa3"
    arguments.dsa_decode_backend = "trtllm"
    assert identity.attention_backends(arguments) == "triton, fa3, trtllm"


def test_backends_of_compressed_kv_are_named_by_what_they_do():
    """What computes prompts may round to 8 bits what others do not."""
    arguments = SimpleNamespace(
        attention_backend="dsv4",
        prefill_attention_backend=None,
        decode_attention_backend=None,
        dsa_prefill_backend=None,
        dsa_decode_backend=None,
        dsv4_attn_backend="flashmla",
        dsv4_prefill_backend="flashmla_sparse_q8",
    )
    assert identity.attention_backends(arguments) == "dsv4, dsv4, flashmla, flashmla_sparse_q8"


def test_code_of_the_users_own_models_counts(tmp_path, monkeypatch):
    package = tmp_path / "our_models"
    package.mkdir()
    (package / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    seen = {software()}
    monkeypatch.setenv("SGLANG_EXTERNAL_MODEL_PACKAGE", "our_models")
    for code in ("a = 1", "a = 2"):
        (package / "mine.py").write_text(code)
        identity._code_digest.cache_clear()
        seen.add(software())
    assert len(seen) == 3


class LoadedAdapter:
    """As SGLang's `LoRAAdapter`, with one layer, as far as its content is concerned."""

    def __init__(self, weights, **changes):
        given = {"r": 8, "lora_alpha": 16, "target_modules": ["q_proj"], "base_model_name_or_path": "owner/base"}
        self.config = SimpleNamespace(hf_config=given | changes, added_tokens_config=None)
        self.scaling = self.config.hf_config["lora_alpha"] / self.config.hf_config["r"]
        self.layers = [SimpleNamespace(weights=weights)]
        self.embedding_layers, self.added_tokens_embeddings = {}, {}


def content_of(weights=None, modules=("qkv_proj",), **changes):
    weights = weights or {"q_proj.lora_A": torch.arange(6.0), "q_proj.lora_B": torch.ones(2, 3)}
    manager = SimpleNamespace(loras={"id": LoadedAdapter(weights, **changes)}, target_modules=set(modules))
    known = LoadedAdapters()
    found = known.content(manager, "id", no_others)
    weights.clear()
    assert known.content(manager, "id", no_others) == found, "it is read once"
    assert known.content(manager, "another", no_others) is None
    return found


def no_others(said, operation):
    """There are no other ranks."""


def test_an_adapter_is_known_by_what_was_loaded_of_it():
    """Its weights, and how they are scaled; not where it was made, nor in which order it was read."""
    a, b = torch.arange(6.0), torch.ones(2, 3)
    same = content_of()
    assert len(same) == 32
    assert content_of(base_model_name_or_path="/elsewhere") == same
    assert content_of(modules=("o_proj", "qkv_proj")) == content_of(modules=("qkv_proj", "o_proj"))
    assert content_of(weights={"q_proj.lora_B": b.clone(), "q_proj.lora_A": a.clone()}) == same
    assert content_of(weights={"q_proj.lora_B": b.t().contiguous().t(), "q_proj.lora_A": a}) == same
    others = [
        content_of(modules=("o_proj",)),
        content_of(lora_alpha=64),
        content_of(r=16),
        content_of(use_rslora=True),
        content_of(weights={"q_proj.lora_A": a, "q_proj.lora_B": b * 2}),
        content_of(weights={"q_proj.lora_A": a.bfloat16(), "q_proj.lora_B": b}),
        content_of(weights={"q_proj.lora_A": a.reshape(2, 3), "q_proj.lora_B": b}),
        content_of(weights={"k_proj.lora_A": a, "k_proj.lora_B": b}),
    ]
    assert len({same, *others}) == 1 + len(others)


def test_an_adapter_that_cannot_be_read_keeps_the_name_that_it_has_while_it_is_loaded(caplog):
    unreadable = {"q_proj.lora_A": None}
    manager = SimpleNamespace(loras={"id": LoadedAdapter(unreadable)}, target_modules=set())
    known = LoadedAdapters()
    assert known.content(manager, "id", no_others) is None
    assert "serve this load only" in caplog.text


def test_ranks_name_an_adapter_alike_or_leave_it_its_name():
    """Also where one of them lacks it, or cannot read it, or has another one of its id; they ask as often as each
    other, whatever they find."""
    weights = {"q_proj.lora_A": torch.arange(6.0)}
    others = [None, LoadedAdapter({"q_proj.lora_A": None}), LoadedAdapter({"q_proj.lora_A": torch.ones(6)})]
    ids = ["same", *map(str, range(len(others)))]
    ranks = []
    for of_others in ([LoadedAdapter(weights)] * len(others), others):
        loras = dict(zip(ids, [LoadedAdapter(weights), *of_others], strict=True))
        ranks.append(
            SimpleNamespace(loras={name: one for name, one in loras.items() if one}, target_modules={"qkv_proj"})
        )
    said = []  # of each rank, one row after the other, as it goes into the collectives

    def of_rank(manager, agreed=None):
        def all_reduce(values, operation):
            rows.append(values.clone())
            if agreed is not None:
                values.copy_(agreed[len(rows) - 1])

        rows, known = [], LoadedAdapters()
        found = [known.content(manager, name, all_reduce) for name in [*ids, *ids]]
        said.append(rows)
        return found[: len(ids)], found[: len(ids)] == found[len(ids) :]

    for manager in ranks:
        of_rank(manager)
    agreed = [torch.minimum(one, other) for one, other in zip(*said, strict=True)]
    assert len(agreed) == len(ids)
    found = [of_rank(manager, agreed) for manager in ranks]
    assert found[0] == found[1] == ([content_of(dict(weights)), None, None, None], True)


def test_an_extra_key_that_names_an_adapter_is_no_use_of_it(monkeypatch):
    """Who names an adapter's id as `extra_key` would write KV of the base model where its users look for theirs."""
    from array import array

    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.sampling.sampling_params import SamplingParams

    from swift_tiers.sglang_ext import hook_functions

    monkeypatch.setattr(hook_functions, "swift_linker", lambda scheduler: scheduler.linker)
    model = SimpleNamespace(vocab_size=256)
    adapter, again, unknown = "0123456789abcdef" * 2, "123456789abcdef0" * 2, "23456789abcdef01" * 2
    weights = {"q_proj.lora_A": torch.ones(2)}
    loaded = {adapter: LoadedAdapter(weights), again: LoadedAdapter(weights)}
    manager = SimpleNamespace(loras=loaded, target_modules={"qkv_proj"})
    served = SimpleNamespace(
        linker=SimpleNamespace(adapters=LoadedAdapters()),
        enable_lora=True,
        model_config=model,
        tree_cache=SimpleNamespace(_all_reduce_attn_groups=no_others),
        tp_worker=SimpleNamespace(model_runner=SimpleNamespace(lora_manager=manager)),
    )
    content = content_of({"q_proj.lora_A": torch.ones(2)})

    def key(extra_key, lora_id, scheduler=served, last=2):
        req = Req("r", "", array("q", [1, last]), SamplingParams(), extra_key=extra_key, lora_id=lora_id)
        hook_functions.after_radix_namespace(None, scheduler, req)
        return req.extra_key

    alone = SimpleNamespace(linker=object(), enable_lora=False, model_config=model)
    assert key(adapter, None, alone) == adapter, "nothing to keep apart"
    assert key(adapter, None, SimpleNamespace(linker=None, enable_lora=True)) == adapter, "no tiers, no change"
    given = [(None, None), ("", None), (adapter, None), (f"{adapter}\0", None), ("x", None), (None, adapter)]
    given += [("x", adapter), (f"x{adapter}", None), ("\0", adapter), (adapter, adapter)]
    # Numbers beyond the vocabulary stand for pictures: nobody who sends some has a key of those who do not.
    keys = {key(*pair, last=last) for pair in given for last in (255, 256)}
    assert len(keys) == 2 * len(given) - 1, "of an empty one and none, where both get a mark"
    assert key(None, None) is None, "most requests have no key of their own"
    assert key("x", adapter) == key("x", again) == f"x{content}", "loaded twice, it is the same adapter"
    assert key(content, None) != key(None, adapter), "to know its content is no use of it, either"
    assert key(adapter, again) == adapter + content, "what clients write stays"
    assert key("x", unknown) == f"x{unknown}", "it has just been unloaded"


def test_a_turn_that_has_lost_its_picture_has_a_key_of_its_own(monkeypatch):
    """SGLang gives a session's turn the numbers of former turns' pictures, and of a turn that was aborted not the
    picture: what is computed then is nobody else's."""
    from array import array

    from sglang.srt.managers.schedule_batch import Modality, MultimodalDataItem, MultimodalInputs, Req
    from sglang.srt.sampling.sampling_params import SamplingParams

    from swift_tiers.sglang_ext import hook_functions

    monkeypatch.setattr(hook_functions, "swift_linker", lambda scheduler: scheduler.linker)
    scheduler = SimpleNamespace(linker=object(), enable_lora=False, model_config=SimpleNamespace(vocab_size=256))
    items = [MultimodalDataItem(modality=Modality.IMAGE) for _ in range(2)]
    for number, item in enumerate(items):
        item.set_hash(number + 7)
    text, numbers = [1, 2, 3], [number for item in items for number in item.padding_sequence(5)]

    def marked(prompt, *there):
        req = Req("r", "", array("q", [1, 2]), SamplingParams())
        req.origin_input_ids = array("q", prompt)
        req.multimodal_inputs = MultimodalInputs(mm_items=list(there)) if there else None
        hook_functions.after_radix_namespace(None, scheduler, req)
        return req.extra_key is not None

    assert not marked(text)
    assert not marked(text, items[0]), "a picture that has left no number"
    assert not marked(text + numbers, *items)
    assert marked(text + numbers)
    assert marked(text + numbers, items[0]), "that of a former turn is not there"
    assert marked(numbers[:5] + text, items[1])
    assert not marked(numbers[:5] + text, items[0])


def test_nothing_is_kept_of_a_turn_whose_picture_is_taken_away(monkeypatch):
    """SGLang does that when a session is closed, or has not been used for long, while turns wait or are computed."""
    from swift_tiers.sglang_ext import hook_functions

    def closed(*, tiers=True, streaming=False, finished=False, picture="a picture"):
        monkeypatch.setattr(hook_functions, "get_memory", lambda: SimpleNamespace(enable_swift_tiers=tiers))
        req = SimpleNamespace(finished=lambda: finished, multimodal_inputs=picture, skip_radix_cache_insert=False)
        session = SimpleNamespace(streaming=streaming, req_nodes={"r": SimpleNamespace(req=req)})
        hook_functions.before_session_closes(SimpleNamespace(sessions={"s": session}), "s")
        return req.skip_radix_cache_insert

    assert closed()
    assert not closed(tiers=False)
    assert not closed(streaming=True), "SGLang waits for its end"
    assert not closed(finished=True)
    assert not closed(picture=None)


def test_the_versions_of_sglang_and_of_swift_tiers_count(monkeypatch):
    seen = {software()}
    for changed in ("sglang", "swift-tiers", "transformers"):
        monkeypatch.setattr(identity, "version", lambda name, changed=changed: "9.9" if name == changed else "1.0")
        seen.add(software())
    assert len(seen) == 4
    assert namespace(software="sglang 1.0").digest() != namespace(software="sglang 2.0").digest()


@pytest.mark.parametrize("room", ["kernels", "radix_tiering", "sglang_ext"])
def test_the_code_of_every_room_that_makes_pages_counts_in_full(room, monkeypatch):
    """A part of a digest that says whose pages these are is met by chance, or looked for."""
    before, of_code = software(), identity._code_digest

    def changed(package):
        # Its last digit alone.
        return of_code(package)[:-1] + "x" if package == f"swift_tiers.{room}" else of_code(package)

    monkeypatch.setattr(identity, "_code_digest", changed)
    after = software()
    assert [len(one.rpartition(" ")[2]) for one in (before, after)] == [32, 32]
    assert before != after


def test_configuration_that_changes_no_kv_is_left_out():
    config = {"hidden_size": 64, "rope_theta": 1e4, "_name_or_path": "/a", "transformers_version": "5"}
    assert config_digest(config) == config_digest({**config, "_name_or_path": "/b", "transformers_version": "6"})
    assert config_digest(config) != config_digest({**config, "rope_theta": 1e6})
    parts = [{"text_config": {**config, "_name_or_path": name}, "x": 1} for name in ("/a", "/b")]
    assert config_digest(parts[0]) == config_digest(parts[1])


def test_every_field_of_the_namespace_counts():
    digests = {namespace().digest()}
    changes = [
        {"model": "other"}, {"weights": "other"}, {"dtype": "bfloat16"}, {"first_layer": 4}, {"kv_heads": 1},
        {"head_dim": 64}, {"rank": "tp1/2"}, {"quantization": "fp8"}, {"format_version": 2}, {"loading": "fp8"},
        {"software": "sglang 2.0"},
        {"geometry": msgspec.structs.replace(GEOMETRY, tokens=8)},
        {"geometry": msgspec.structs.replace(GEOMETRY, layers=3)},
        {"geometry": msgspec.structs.replace(GEOMETRY, planes=1, row_bytes=2 * GEOMETRY.row_bytes)},
    ]  # fmt: skip
    for change in changes:
        digests.add(namespace(**change).digest())
    assert len(digests) == 1 + len(changes)
    assert namespace().digest() in digests
