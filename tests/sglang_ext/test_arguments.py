"""The flags, as a user meets them: real command lines, before any model is loaded."""

from __future__ import annotations

import fcntl
import json
import re
import stat
from types import SimpleNamespace

import pytest

from swift_tiers.ops.base.model import tiny_model
from swift_tiers.radix_tiering.base.errors import ConfigError
from swift_tiers.radix_tiering.tiers.ssd.files import create_device_file

from support import forked
from support.models import tiny_compressed, tiny_gemma, tiny_minimax, tiny_mla
from support.swiftkv_models import tiny_swiftkv

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(tiny_model(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """One of each kind that is no plain one, by name: its path. Only what says so about itself is there, no weights."""
    from transformers import FalconH1Config, Gemma3TextConfig, MllamaConfig, WhisperConfig

    root = tmp_path_factory.mktemp("models")
    made = {"mla": tiny_mla(root / "mla"), "own pool": tiny_gemma(root / "windows", own_pool=True)}
    made["gemma"] = tiny_gemma(root / "gemma")
    made["by blocks"] = tiny_minimax(root / "by blocks")
    made["compressed"] = tiny_compressed(root / "compressed")
    made["compressed otherwise"] = tiny_compressed(root / "compressed otherwise", ratios=[0, 4, 4, 4])
    for name, config, architecture in (
        ("whisper", WhisperConfig(), "WhisperForConditionalGeneration"),
        ("mllama", MllamaConfig(), "MllamaForConditionalGeneration"),
        ("states", FalconH1Config(num_hidden_layers=2), "FalconH1ForCausalLM"),
        (
            "two rows",
            Gemma3TextConfig(num_hidden_layers=2, hybrid_layer_pattern=[1, 0], v_head_dim=128),
            "MiMoV2FlashForCausalLM",
        ),
        ("embedding", Gemma3TextConfig(num_hidden_layers=6, use_bidirectional_attention=True), "Gemma3TextModel"),
    ):
        config.architectures = [architecture]
        config.save_pretrained(root / name)
        made[name] = root / name
    sparse = json.loads((made["mla"] / "config.json").read_text())
    sparse |= {
        "architectures": ["DeepseekV32ForCausalLM"],
        "index_topk": 2048,
        "index_head_dim": 16,
        "index_n_heads": 4,
    }
    for name, more in (("sparse", {}), ("pooled index", {"index_kpool": 4, "index_kpool_compress": True})):
        (root / name).mkdir()
        (root / name / "config.json").write_text(json.dumps(sparse | more))
        made[name] = root / name
    return {name: str(path) for name, path in made.items()}


#: Runs many command lines in one process, since each start of SGLang's imports takes ten seconds and more.
RUNNER = """
import contextlib, io, json, os, sys
from sglang.srt.plugins import load_plugins
load_plugins()
from sglang.srt.server_args import prepare_server_args
results = []
for line in json.loads(sys.stdin.read()):
    errors, code, fields = io.StringIO(), 0, {}
    os.environ["XDG_RUNTIME_DIR"] = line.pop(0)
    with contextlib.redirect_stderr(errors):
        try:
            record = prepare_server_args(line)
            record.resolve_once()
            from sglang.srt.arg_groups.overrides import resolving_view
            view = resolving_view(record)
            fields = {name: getattr(view, name) for name in (
                "enable_swift_tiers", "swift_tiers_config", "page_size", "enable_unified_cache_external_linker",
                "unified_cache_external_linker_config", "attention_backend", "disable_prefill_cuda_graph",
                "disable_decode_cuda_graph")}
        except SystemExit as end:
            code = end.code
        except Exception as error:
            code = repr(error)
    results.append({"code": code, "errors": errors.getvalue(), "fields": fields})
print("RESULTS" + json.dumps(results))
"""


def resolve(lines: list[list[str]]) -> list[dict]:
    done = forked.run(RUNNER, said=json.dumps([["", *line] if line[0] != "in" else line[1:] for line in lines]))
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("RESULTS")] or [done.stderr[-2000:]]
    results: list[dict] = json.loads(line.removeprefix("RESULTS"))
    return results


def test_command_lines(model, tmp_path):
    base = ["--model-path", model]
    ours = [*base, "--enable-swift-tiers"]
    good = tmp_path / "good"
    good.mkdir()
    file = tmp_path / "tiers.toml"
    file.write_text('[host]\nsize = "64MiB"\n')
    busy = tmp_path / "busy"
    busy.mkdir()
    held = open(busy / "swift-tiers-dp0-tp0.stripe", "wb")  # noqa: SIM115 - held open below
    held.truncate(2**25)
    fcntl.flock(held, fcntl.LOCK_EX)

    full = tmp_path / "full"
    full.mkdir()
    for rank in ("dp0-tp0", "dp0-tp1"):
        create_device_file(full / f"swift-tiers-{rank}.stripe", 2**24)

    def ssd(*directories, **more):
        return ["--swift-tiers-config", json.dumps({"ssd": {"directories": [str(d) for d in directories], **more}})]

    def bus(**fields):
        return ["--swift-tiers-config", json.dumps({"bus": fields})]

    squatted = tmp_path / "squatted"
    (squatted / "swift-tiers").mkdir(parents=True)
    (squatted / "swift-tiers").chmod(0o777)
    # A name of its own: this machine's may be too long for a socket in a test's directory.
    donor = ["--swift-tiers-config", '{"peer": {"donate": true}, "bus": {"server": "a"}}']

    long_named = ["--swift-tiers-config", json.dumps({"peer": {"donate": True}, "bus": {"server": "x" * 90}})]

    def leases(directory, donate=True):
        peer = {"donate": donate, "borrow": True, "directory": str(directory)}
        return ["--swift-tiers-config", json.dumps({"peer": peer, "bus": {"server": "a"}})]

    def remote(engine, **options):
        return ["--swift-tiers-config", json.dumps({"remote": {"engine": engine, "options": options}})]

    accepted = {
        "off": base,
        "on": ours,
        "file": [*ours, "--swift-tiers-config", f"@{file}"],
        "page size": [*ours, "--page-size", "64"],
        "ssd": [*ours, *ssd(good, size_per_device="32MiB")],
        "ranks with files": [*ours, *ssd(full, size_per_device="900TiB"), "--tp-size", "2"],
        "no bus": [*ours, *bus(enabled=False, url="redis://x", password_file=str(tmp_path / "missing"))],
        "named": [*ours, *bus(server="alpha")],
        "donor": [*ours, *donor, "--dp-size", "2"],
        "leases": [*ours, *leases(tmp_path / "leases")],
        "dynamic engine": [*ours, *remote("dynamic", module_path="ours", class_name="Store", backend_name="ours")],
        "others' leases": [*ours, *leases(file / "below", donate=False)],
        "squatted": ["in", str(squatted), *ours, "--swift-tiers-config", '{"peer": {"borrow": true, "term": "5s"}}'],
        "experts": [*ours, "--tp-size", "2", "--ep-size", "2"],
        "two machines": [*ours, "--nnodes", "2", "--tp-size", "2", "--dist-init-addr", "10.0.0.1:20000"],
    }
    in_fp8 = [*ours, "--kv-cache-dtype", "fp8_e5m2"]
    refused = {
        "host.codec: int8 encodes no KV": [*in_fp8, "--swift-tiers-config", '{"host": {"codec": "int8"}}'],
        "ssd.codec: KV of": [*in_fp8, *ssd(good, codec="zstd")],
        "host.sise": [*ours, "--swift-tiers-config", '{"host": {"sise": 1}}'],
        "host.size": [*ours, "--swift-tiers-config", '{"host": {"size": "900TiB"}}'],
        "--swift-tiers-config": [*ours, "--swift-tiers-config", "{"],
        "ssd.directories[0]": [*ours, *ssd(tmp_path / "missing")],
        "ssd.directories": [*ours, *ssd(good, good)],
        "ssd.size_per_device": [*ours, *ssd(good, size_per_device="900TiB")],
        "ssd.size_per_device: the 900TiB of new": [*ours, *ssd(full, size_per_device="900TiB"), "--dp-size", "2"],
        "ssd:": [*ours, *ssd(busy)],
        "--page-size": [*ours, "--page-size", "48", "--chunked-prefill-size", "1024"],
        "--page-size: 24 does not divide --chunked-prefill-size": [*ours, "--page-size", "24"],
        "--disable-radix-cache": [*ours, "--disable-radix-cache"],
        "--enable-hierarchical-cache": [*ours, "--enable-hierarchical-cache"],
        "--attn-dp-size": [*ours, "--tp-size", "2", "--attn-dp-size", "2", "--nnodes", "2", "--node-rank", "0"],
        "--attn-cp-size": [*ours, "--tp-size", "2", "--attn-cp-size", "2"],
        "--enable-prefill-cp": [*ours, "--tp-size", "2", "--enable-prefill-cp"],
        "--dcp-size": [*ours, "--tp-size", "2", "--dcp-size", "2"],
        "--enable-kv-cache-sharding": [*ours, "--tp-size", "2", "--enable-kv-cache-sharding"],
        "--enable-dsa-cache-layer-split": [*ours, "--tp-size", "2", "--enable-dsa-cache-layer-split"],
        "--dllm-algorithm": [*ours, "--dllm-algorithm", "LowConfidence"],
        "--enable-pdmux": [*ours, "--enable-pdmux"],
        "--use-ray": [*ours, "--use-ray"],
        "--enable-return-routed-experts": [*ours, "--enable-return-routed-experts"],
        "--enable-return-indexer-topk": [*ours, "--enable-return-indexer-topk"],
        "--kv-canary": [*ours, "--kv-canary", "log"],
        "identity.weights": [*ours, "--swift-tiers-config", '{"identity": {"weights": "sampled"}}'],
        "bus.password_file": [*ours, *bus(url="redis://x", password_file=str(tmp_path / "missing"))],
        "bus.url": [*ours, *bus(url="http://x")],
        "bus.directory": [*ours, *bus(directory=str(file))],
        "peer.directory": [*ours, *leases(file / "below")],
        "remote.engine: names no engine": [*ours, *remote("")],
        "remote.engine: ' mooncake ' has spaces": [*ours, *remote(" mooncake ")],
        "remote.engine: SGLang has no storage backend 'moncake'": [*ours, *remote("moncake")],
        "x.dp1-tp1.lease is too long": [*ours, *long_named, "--dp-size", "2", "--tp-size", "2"],
        "peer.donate: 'much' is not": [*ours, "--swift-tiers-config", '{"peer": {"donate": "much"}}'],
        "--swift-tiers-config: has no effect": [*base, "--swift-tiers-config", '{"host": {}}'],
    }
    results = resolve([*accepted.values(), *refused.values()])
    held.close()
    fields = {}
    for name, result in zip(accepted, results, strict=False):
        assert result["code"] == 0, (name, result)
        fields[name] = result["fields"]
    assert fields["off"]["enable_swift_tiers"] is False
    assert fields["off"]["enable_unified_cache_external_linker"] is False
    assert fields["on"]["enable_unified_cache_external_linker"] is True
    assert fields["on"]["page_size"] == 16
    assert fields["page size"]["page_size"] == 64
    assert fields["file"]["swift_tiers_config"] == {"host": {"size": "64MiB"}}
    extra = fields["file"]["unified_cache_external_linker_config"]["linker_extra_config"]
    assert extra["host"]["size"] == 64 * 2**20
    names = {
        name: found["unified_cache_external_linker_config"]["linker_extra_config"]["bus"]["server"]
        for name, found in fields.items()
        if found["enable_swift_tiers"]
    }
    assert names["named"] == "alpha"
    assert names["two machines"] == "10.0.0.1-20000", "another one would be known by another name on each machine"
    # The port is SGLang's default, the process the one that resolved it.
    assert re.fullmatch(r"[A-Za-z0-9._-]+-30000-[0-9]+", names["on"])
    extra = fields["squatted"]["unified_cache_external_linker_config"]["linker_extra_config"]
    assert (extra["bus"]["enabled"], extra["peer"]["borrow"]) == (False, False), "a bus that others can reach into"
    assert fields["on"]["swift_tiers_config"] is None, "the record keeps what the user gave"
    for field, result in zip(refused, results[len(accepted) :], strict=True):
        assert result["code"] == 2, (field, result)
        lines = [line for line in result["errors"].splitlines() if line.startswith("swift-tiers: error: ")]
        assert len(lines) == 1, (field, result)
        assert field in lines[0], (field, lines)
    assert not list(good.iterdir()), "checking made files"
    assert stat.S_IMODE((tmp_path / "leases").stat().st_mode) == 0o700
    assert not list((tmp_path / "leases").iterdir()), "checking made files"


def test_models_and_modes(model, models):
    """What the tiers cannot carry is refused in one line that names a remedy, where there is one."""
    on = ["--enable-swift-tiers", "--model-path"]
    donor = ["--swift-tiers-config", '{"peer": {"donate": true}, "bus": {"server": "a"}}']
    ngram = ["--speculative-algorithm", "NGRAM"]
    prefill = ["--disaggregation-mode", "prefill", "--disaggregation-transfer-backend", "nixl"]
    accepted = {
        "mla": [*on, models["mla"]],
        "gemma": [*on, models["gemma"]],
        "embeddings": [*on, model, "--is-embedding"],
        "own pool": [*on, models["own pool"]],
        "no pool of their own": [*on, models["own pool"], "--disable-hybrid-swa-memory", *donor],
        "ngram": [*on, model, *ngram, "--speculative-ngram-max-bfs-breadth", "1"],
        "ngram on flashinfer": [*on, model, *ngram, "--attention-backend", "flashinfer"],
        "prefill alone": [*on, model, *prefill],
        "compressed": [*on, models["compressed"]],
        "without tiers": ["--model-path", models["own pool"]],
    }
    refused = {
        "MllamaForConditionalGeneration has an encoder": [*on, models["mllama"]],
        "WhisperForConditionalGeneration has an encoder": [*on, models["whisper"]],
        "peer.donate: TinyWindowedForCausalLM keeps .* remove peer.donate, or add --disable-hybrid-swa-memory": [
            *on,
            models["own pool"],
            *donor,
        ],
        "--speculative-algorithm: what drafts for TinyWindowedForCausalLM keeps KV of windows itself": [
            *on,
            models["own pool"],
            "--speculative-algorithm",
            "eagle3",
        ],
        "MiMoV2FlashForCausalLM keeps KV of several kinds": [*on, models["two rows"]],
        "host.codec: DeepseekV4ForCausalLM keeps no row of KV for each token, .* use host.codec none": [
            *on,
            models["compressed"],
            "--swift-tiers-config",
            '{"host": {"codec": "fp8"}}',
        ],
        "DeepseekV4ForCausalLM keeps KV of several kinds": [*on, models["compressed otherwise"]],
        "peer.donate: DeepseekV4ForCausalLM keeps the KV of the last tokens .* remove peer.donate$": [
            *on,
            models["compressed"],
            *donor,
        ],
        "peer.donate: FalconH1ForCausalLM has layers that keep a state": [*on, models["states"], *donor],
        "DeepseekV32ForCausalLM keeps parts of its index by request": [*on, models["pooled index"]],
        "switches its radix cache off for Gemma3TextModel": [*on, models["embedding"]],
        "its radix cache off for another argument, .* change that": [
            *on,
            model,
            "--enable-mis",
            "--attention-backend",
            "flashinfer",
        ],
        "radix cache off .* the --attention-backend": [
            *on,
            model,
            "--enable-deterministic-inference",
            "--attention-backend",
            "flashinfer",
        ],
        "--enable-unified-memory: .* remove it": [*on, model, "--enable-unified-memory"],
        "peer.donate: DeepseekV2ForCausalLM keeps latent KV": [*on, models["mla"], *donor],
        "peer.donate: MiniMaxM3SparseForCausalLM keeps an index beside its KV": [*on, models["by blocks"], *donor],
        "--speculative-algorithm: dflash .* use one of NGRAM, EAGLE, ": [
            *on,
            model,
            "--speculative-algorithm",
            "dflash",
        ],
        "peer.donate: with --disaggregation-mode": [*on, model, *donor, *prefill],
        "--disaggregation-mode: .* use it on those that do": [*on, model, "--disaggregation-mode", "decode"],
        "--enable-pd-role-switch: .* remove it": [*on, model, *prefill, "--enable-pd-role-switch"],
        "peer.donate: with --attn-dp-size": [*on, model, *donor, "--tp-size", "2", "--attn-dp-size", "2"],
        "peer.donate: a server that drafts by a model": [*on, model, *donor, "--speculative-algorithm", "eagle3"],
        "--speculative-ngram-max-bfs-breadth: with pages of 16 .* add .*breadth 1": [*on, model, *ngram],
    }
    results = resolve([*accepted.values(), *refused.values()])
    for name, result in zip(accepted, results, strict=False):
        assert result["code"] == 0, (name, result)
    for pattern, result in zip(refused, results[len(accepted) :], strict=True):
        assert result["code"] == 2, (pattern, result)
        lines = [line for line in result["errors"].splitlines() if line.startswith("swift-tiers: error: ")]
        assert len(lines) == 1, (pattern, result)
        assert re.search(pattern, lines[0]), (pattern, lines)


def test_rows_that_a_draft_skips_are_not_kept(monkeypatch):
    from swift_tiers.radix_tiering.base.config import TiersConfig
    from swift_tiers.radix_tiering.base.errors import ConfigError
    from swift_tiers.sglang_ext.pools.supported import check_speculation

    given = SimpleNamespace(
        speculative_algorithm="EAGLE",
        speculative_adaptive=True,
        speculative_ngram_max_bfs_breadth=1,
        page_size=16,
        attention_backend="triton",
    )
    check_speculation(given, TiersConfig())
    monkeypatch.setenv("SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND", "1")
    with pytest.raises(ConfigError, match="unset one of the two"):
        check_speculation(given, TiersConfig())


def test_graphs_that_are_captured_with_a_picture_are_refused(monkeypatch):
    from swift_tiers.radix_tiering.base.errors import ConfigError
    from swift_tiers.sglang_ext.pools.supported import check_modes

    class Given:
        """SGLang's arguments as they are by default."""

        pp_size = nnodes = attn_dp_size = attn_cp_size = dcp_size = 1
        kv_canary, disaggregation_mode = "none", "null"

        def __getattr__(self, name):
            return False if name.startswith(("enable_", "disable_", "use_")) else None

    check_modes(Given())
    monkeypatch.setenv("SGLANG_VIT_ENABLE_CUDA_GRAPH", "1")
    with pytest.raises(ConfigError, match=r"^SGLANG_VIT_ENABLE_CUDA_GRAPH: .* unset it$"):
        check_modes(Given())


def test_swiftkv_models(tmp_path):
    """With tiers and without them; what cannot be computed is refused in one line."""
    model = str(tiny_swiftkv(tmp_path / "model"))
    (tmp_path / "mended").mkdir()
    config = json.loads((tmp_path / "model" / "config.json").read_text()) | {"num_key_value_layers": 8}
    (tmp_path / "mended" / "config.json").write_text(json.dumps(config))
    base = ["--device", "cpu", "--model-path", model]
    exits = ["--device", "cpu", "--model-path", str(tiny_swiftkv(tmp_path / "exits", exits=0.9))]
    threshold = "--json-model-override-args"
    accepted = {
        "plain": base,
        "exits early": [*exits, threshold, '{"swiftkv_exit_threshold": 0.95}'],
        "tiers": [*base, "--enable-swift-tiers"],
        "ranks": [*base, "--tp-size", "2"],
        "torch_native": [*base, "--attention-backend", "torch_native"],
    }
    refused = {
        "--is-embedding: .*, a SwiftKV model; it has no embeddings": [*base, "--is-embedding"],
        "--pp-size: .* use --tp-size": [*base, "--pp-size", "2"],
        "--enable-lora: .* merge the adapter": [*base, "--enable-lora", "--lora-paths", "a=b", "--max-lora-rank", "8",
                                                "--lora-target-modules", "q_proj"],
        "--speculative-algorithm: STANDALONE .* use NGRAM": [*base, "--speculative-algorithm", "STANDALONE",
                                                             "--speculative-draft-model-path", model],
        "--attention-backend: flex_attention .* use one of swift_cpu": [*base, "--attention-backend", "flex_attention"],
        "--tp-size: 4 does not divide the 2 KV heads": [*base, "--tp-size", "4"],
        "--cuda-graph-backend-prefill: .* remove it": [*base, "--cuda-graph-backend-prefill", "full"],
        "num_key_value_layers is 8; of 8 layers, 1 to 7": ["--device", "cpu", "--model-path", str(tmp_path / "mended")],
        "no output matrix for it: train one by": [*base, threshold, '{"swiftkv_exit_threshold": 0.95}'],
        "which is no probability; name 0.95": [*exits, threshold, '{"swiftkv_exit_threshold": 95}'],
        "--cuda-graph-backend-decode: .* an early exit": [*exits, "--cuda-graph-backend-decode", "full"],
        "--speculative-algorithm: .* an early exit": [*exits, "--speculative-algorithm", "NGRAM"],
    }  # fmt: skip
    results = resolve([*accepted.values(), *refused.values()])
    for name, result in zip(accepted, results, strict=False):
        assert result["code"] == 0, (name, result)
        assert result["fields"]["disable_prefill_cuda_graph"], name
        assert result["fields"]["disable_decode_cuda_graph"] == (name == "exits early"), name
    for pattern, result in zip(refused, results[len(accepted) :], strict=True):
        assert result["code"] == 2, (pattern, result)
        lines = [line for line in result["errors"].splitlines() if line.startswith("swift-tiers: error: ")]
        assert len(lines) == 1, (pattern, result)
        assert re.search(pattern, lines[0]), (pattern, lines)


@pytest.mark.parametrize("peer", [{}, {"donate": True, "window": "5s"}, {"borrow": True, "borrow_limit": "1GiB"}])
def test_a_squatted_directory_of_the_bus_ends_no_start(tmp_path, monkeypatch, peer):
    from swift_tiers.radix_tiering.base.read_config import dump_config, parse_config
    from swift_tiers.sglang_ext.build.start_checks import without_a_bus_that_cannot_be

    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    config = parse_config({"peer": peer, "bus": {"control": True}})
    assert without_a_bus_that_cannot_be(config) == (config, "")
    (tmp_path / "swift-tiers").mkdir()
    (tmp_path / "swift-tiers").chmod(0o777)
    served, trouble = without_a_bus_that_cannot_be(config)
    assert [served.bus.enabled, served.peer.donate, served.peer.borrow] == [False] * 3
    assert trouble.startswith("serving without the bus" + " and lending or borrowing no memory" * bool(peer))
    assert "run `chmod 700` on it, or set bus.url" in trouble
    assert "\n" not in trouble
    assert parse_config(dump_config(served)) == served
    named = parse_config({"peer": peer, "bus": {"directory": str(tmp_path / "swift-tiers")}})
    assert without_a_bus_that_cannot_be(named) == (named, ""), "a place that was named is refused when it is looked at"


def test_help_shows_the_flags():
    done = forked.run("import runpy; runpy.run_module('sglang.launch_server', run_name='__main__')", "--help")
    assert "--enable-swift-tiers" in done.stdout
    assert "--swift-tiers-config" in done.stdout


def test_a_changed_sglang_is_refused():
    import inspect

    from sglang.srt.plugins.hook_registry import HookType

    from swift_tiers.sglang_ext.hooks import Hook, HookMismatchError, check_hook

    def anything(*_, **__):
        return None

    target = "sglang.srt.mem_cache.utils.get_hash_str"
    from sglang.srt.mem_cache.utils import get_hash_str

    parameters = tuple(inspect.signature(get_hash_str).parameters)
    check_hook(Hook(target, HookType.AFTER, anything, parameters, "test"))
    with pytest.raises(HookMismatchError, match="takes") as caught:
        check_hook(Hook(target, HookType.AFTER, anything, ("other",), "test"))
    assert "\n" not in str(caught.value)
    with pytest.raises(HookMismatchError, match="is missing"):
        check_hook(Hook(f"{target}_gone", HookType.AFTER, anything, (), "test"))


def test_a_tree_that_sglang_has_switched_off_is_refused_before_a_tier_is_opened():
    """As it does for multimodal models on the Transformers backend, whatever was asked for."""
    from swift_tiers.sglang_ext.way.cache import SwiftRadixCache

    with pytest.raises(ConfigError, match="--model-impl sglang"):
        SwiftRadixCache(SimpleNamespace(disable=True))
