"""Whose pages these are: the namespace of a server's rank, from its model, weights, dtype and partition."""

from __future__ import annotations

import json
import logging
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import xxhash

from swift_tiers.radix_tiering.base.page import Namespace, PageGeometry

from ..pools.device_pool import row_shape
from .content_names import ContentNames, cache_directory
from .weights import LoadedFiles, Source, adapters_of, sources_of

logger = logging.getLogger(__name__)

#: What is in a model's configuration and changes no byte of KV.
_IRRELEVANT = (
    "_name_or_path", "transformers_version", "torchscript", "use_cache", "swiftkv_exit_head", "swiftkv_exit_threshold",
)  # fmt: skip

#: The files of this process's server, since before they were loaded.
_loaded: LoadedFiles | None = None


def begin_loading(server_args: Any, mode: Literal["content", "full"]) -> None:
    """Look at what the model and its adapters are loaded from. To be called before they are; waits for nothing."""
    global _loaded
    _loaded = LoadedFiles(sources_of(server_args), content_names(mode))


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


def software() -> str:
    """What computed the KV: a model file of SGLang's that had a bug must not be answered for by its mended version."""
    return f"sglang {version('sglang')}, swift-tiers {version('swift-tiers')}"


def server_namespace(
    server_args: Any, kvcache: Any, geometry: PageGeometry, ranks: str, mode: Literal["content", "full"]
) -> Namespace:
    """The namespace of one rank of a running server, whose model has been loaded. Waits until its files are read."""
    from sglang.srt.arg_groups.model_override_base import model_config_of

    model_config = model_config_of(server_args)
    model, *_ = sources_of(server_args)
    files = _loaded or LoadedFiles([model], content_names(mode))
    kv_heads, head_dim = row_shape(kvcache)
    return Namespace(
        model=config_digest(model_config.hf_config.to_dict()),
        weights=files.digest(model),
        dtype=f"{kvcache.dtype} of {model_config.dtype}",
        geometry=geometry,
        first_layer=kvcache.start_layer,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rank=ranks,
        quantization=str(getattr(model_config, "quantization", None) or ""),
        loading=loading_digest(server_args, files),
        software=software(),
    )


#: Arguments that change what is computed from the same files.
_LOADING_ARGUMENTS = (
    "load_format", "quantization", "kv_cache_dtype", "torchao_config", "rl_quant_profile", "model_impl",
    "model_loader_extra_config", "modelopt_quant",
)  # fmt: skip


def loading_digest(server_args: Any, files: LoadedFiles) -> str:
    """Hex digest of how the weights are loaded, of the KV scales' file, and of the adapters given at start.

    SGLang names an adapter by its name and path, so one that is trained anew in its place, or scaled otherwise by its
    configuration, would otherwise keep its pages.
    """
    facts: dict[str, Any] = {name: getattr(server_args, name, None) for name in _LOADING_ARGUMENTS}
    scales = getattr(server_args, "quantization_param_path", None)
    facts["scales"] = xxhash.xxh3_128_hexdigest(Path(scales).read_bytes()) if scales else None
    facts["adapters"] = [(name, files.digest(Source(path))) for name, path in adapters_of(server_args)]
    return config_digest(facts)
