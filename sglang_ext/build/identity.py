"""Whose pages these are: the namespace of a server's rank, from its model, weights, dtype and partition."""

from __future__ import annotations

import json
import logging
import os
from functools import cache
from importlib.metadata import PackageNotFoundError, entry_points, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import xxhash

from swift_tiers.radix_tiering.base.page import Namespace, PageGeometry

from ..pools.kept import row_shape
from ..pools.supported import draft_config_of
from .content_names import ContentNames, cache_directory
from .settings import attention_counts, settings, variables
from .weights import LoadedFiles, draft_of, sources_of, unnamed_weights

logger = logging.getLogger(__name__)

#: What is in a model's configuration and changes no byte of KV.
_IRRELEVANT = (
    "_name_or_path", "transformers_version", "torchscript", "use_cache", "swiftkv_exit_head", "swiftkv_exit_threshold",
)  # fmt: skip

#: Variables that name a package of the user's from which SGLang takes models, and what prepares pictures for them.
_EXTERNAL_PACKAGES = ("SGLANG_EXTERNAL_MODEL_PACKAGE", "SGLANG_EXTERNAL_MM_PROCESSOR_PACKAGE")

#: The files of this process's server, since before they were loaded.
_loaded: LoadedFiles | None = None


def begin_loading(server_args: Any, mode: Literal["content", "full"]) -> None:
    """Look at what the model is loaded from. To be called before it is; waits for nothing."""
    global _loaded
    view = resolved(server_args)
    _loaded = LoadedFiles(sources_of(view), content_names(mode), list(_settings_of(view).values()))


def resolved(server_args: Any) -> Any:
    """SGLang's arguments as it has decided on them: what it loads, and how, may be another than what was given."""
    from sglang.srt.arg_groups.model_override_base import resolving_view

    return resolving_view(server_args)


def content_names(mode: Literal["content", "full"]) -> ContentNames:
    """As `identity.weights` says: by what is known of files already, or by every byte."""
    return ContentNames(cache_directory(), read_all=mode == "full")


def config_digest(config: dict[str, Any]) -> str:
    """Hex digest of a model's configuration, without what cannot change its KV."""
    return xxhash.xxh3_128_hexdigest(json.dumps(_relevant(config), sort_keys=True, default=str).encode())


def _relevant(config: Any) -> Any:
    """Without what is irrelevant, at any depth: models of several parts have a configuration for each."""
    if isinstance(config, dict):
        return {name: _relevant(value) for name, value in config.items() if name not in _IRRELEVANT}
    return config


#: Whose versions count: a model file, or a kernel, that had a bug must not be answered for by its mended version.
_PACKAGES = (
    "sglang", "sglang-kernel", "sglang-kernel-cpu", "flashinfer-python", "torch", "triton", "transformers",
    "swift-tiers",
)  # fmt: skip
#: By which other packages change SGLang.
_PLUGINS = "sglang.srt.plugins"


def software() -> str:
    """What computed the KV.

    Models may be taken from transformers, or from a package of the user's; and other plugins may change what SGLang
    computes. Of ours the code counts: checkouts of one version differ.
    """
    plugins = {point.dist.name for point in entry_points(group=_PLUGINS) if point.dist is not None}
    names = ", ".join(filter(None, map(_version, dict.fromkeys((*_PACKAGES, *sorted(plugins))))))
    rooms = "".join(_code_digest(f"swift_tiers.{room}") for room in ("kernels", "radix_tiering", "sglang_ext"))
    names = f"{names} {xxhash.xxh3_128_hexdigest(rooms.encode())}"
    for package in dict.fromkeys(filter(None, map(os.environ.get, _EXTERNAL_PACKAGES))):
        names += f", {package} {_code_digest(package)}"
    return names


def _version(package: str) -> str:
    """Its name and version; empty where it is not installed."""
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return ""


@cache
def _code_digest(package: str) -> str:
    """Of the files of a package's code; SGLang imports each of its modules."""
    found = find_spec(package)
    places = [] if found is None else found.submodule_search_locations or []
    digest = xxhash.xxh3_128()
    for file in sorted(file for place in places for file in Path(place).rglob("*.py")):
        digest.update(f"{file.name}\n".encode() + file.read_bytes())
    return digest.hexdigest()


def attention_backends(server_args: Any) -> str:
    """Those that write and read the KV of prompts and of answers, whether they were named or are SGLang's choice."""
    from sglang.srt.arg_groups.model_override_base import attention_backends_of

    view = resolved(server_args)
    backends = attention_backends_of(view)
    # Those of sparse attention (DSA), and of compressed KV, do what these are named for.
    named = [view.dsa_prefill_backend, view.dsa_decode_backend]
    if "dsv4" in backends:
        named += [view.dsv4_attn_backend, view.dsv4_prefill_backend]
    return ", ".join(map(str, (*backends, *(name for name in named if name is not None))))


def server_namespace(
    server_args: Any, kvcache: Any, geometry: PageGeometry, ranks: str, mode: Literal["content", "full"]
) -> Namespace:
    """The namespace of one rank of a running server, whose model has been loaded. Waits until its files are read."""
    from sglang.srt.arg_groups.model_override_base import model_config_of

    view = resolved(server_args)
    model_config = model_config_of(server_args)
    quantization = str(getattr(model_config, "quantization", None) or "")
    model, *_ = sources_of(view)
    files = _loaded or LoadedFiles([model], content_names(mode))
    kv_heads, head_dim = row_shape(kvcache)
    backends = attention_backends(server_args)
    # Backends differ in whether they write 8-bit KV by its scale.
    attention = backends if kvcache.dtype.itemsize == 1 or attention_counts(view, backends) else ""
    facts = settings(view, is_quantized=bool(quantization)) | {"attention": attention}
    if told_apart := variables(os.environ):
        logger.info("swift-tiers: no pages are shared with servers that have other values of %s", ", ".join(told_apart))
    return Namespace(
        model=config_digest(model_config.hf_config.to_dict()),
        weights=files.digest(model) if model_config.model_path == model.path else unnamed_weights(),
        dtype=f"{kvcache.dtype} of {model_config.dtype}",
        geometry=geometry,
        first_layer=kvcache.start_layer,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rank=ranks,
        quantization=quantization,
        loading=loading_digest(view, files, facts | told_apart, _drafting(server_args)),
        software=software(),
    )


#: Arguments that change what a model that drafts keeps.
_DRAFT_ARGUMENTS = (
    "speculative_draft_model_quantization", "speculative_draft_kv_cache_dtype", "speculative_draft_attention_backend",
    "speculative_draft_window_size", "speculative_draft_sink_size", "decrypted_draft_config_file",
    "enable_multi_layer_eagle", "speculative_moe_runner_backend", "speculative_moe_a2a_backend",
    "speculative_enable_w4a4_mxfp4_megamoe", "speculative_dsa_topk_backend",
)  # fmt: skip
#: Arguments that name small files that do.
_SETTINGS = ("quantization_param_path", "rl_quant_profile")
#: Arguments that name weights beside the model's, or code that may change what layers compute.
_OTHER_WEIGHTS = ("kt_weight_path", "modelopt_checkpoint_restore_path", "forward_hooks", "uno_lora_path")


def _settings_of(view: Any) -> dict[str, str]:
    given = {name: getattr(view, name, None) for name in _SETTINGS}
    return {name: str(path) for name, path in given.items() if path}


def _drafting(server_args: Any) -> str:
    """By what, and as what, the model that drafts computes; empty where none does. As SGLang has resolved it: it has
    several names for one algorithm."""
    view = resolved(server_args)
    if draft_of(view) is None:
        return ""
    config = draft_config_of(server_args, view)
    return f"{view.speculative_algorithm} {config.dtype} {config_digest(config.hf_config.to_dict())}"


def loading_digest(view: Any, files: LoadedFiles, given: dict[str, Any], drafting: str = "") -> str:
    """Hex digest of the settings `given`, and of files of settings. `view`: SGLang's arguments, resolved; `drafting`:
    see `_drafting`."""
    facts = dict(given)
    facts["settings"] = {name: files.setting(path) for name, path in _settings_of(view).items()}
    if (draft := draft_of(view)) is not None:
        # Its KV lies in the pages, beside the model's. How many tokens are drafted, and by which of them, changes none.
        facts["draft"] = {name: getattr(view, name, None) for name in _DRAFT_ARGUMENTS}
        facts["draft"] |= {"weights": files.digest(draft), "computed": drafting}
    if any(getattr(view, name, None) for name in _OTHER_WEIGHTS) or _names_a_place(
        getattr(view, "model_loader_extra_config", None)
    ):
        facts["other weights"] = unnamed_weights()
    return config_digest(facts)


def _names_a_place(loader_config: Any) -> bool:
    """Whether a loader is told of files, or of a repository, whose content nobody has looked at."""
    given = loader_config
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            return "/" in given
    return any("/" in str(value) for value in given.values()) if isinstance(given, dict) else False
