"""Whose pages these are: the namespace of a server's rank, from its model, weights, dtype and partition."""

from __future__ import annotations

import json
import logging
import os
import secrets
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import xxhash

from swift_tiers.radix_tiering.page import Namespace, PageGeometry

logger = logging.getLogger(__name__)

#: Bytes taken from each place where a weights file is sampled.
SAMPLE_BYTES = 4096
#: Distance between samples in files whose tensors are not known.
SAMPLE_DISTANCE = 2**20
_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
#: Loading these formats yields weights that no file describes, so nothing may be shared across processes.
_RANDOM_FORMATS = ("dummy", "remote", "remote_instance")
#: What is in a model's configuration and changes no byte of KV.
_IRRELEVANT = ("_name_or_path", "transformers_version", "torchscript", "use_cache")


def weights_digest(
    model_path: str,
    load_format: str,
    mode: Literal["sampled", "full"],
    *,
    revision: str | None = None,
    download_dir: str | None = None,
) -> str:
    """Hex digest of the weights that a server loads from `model_path`.

    "sampled": the name, size, time of change and header of every weight file, and the beginning, middle and end of
    every tensor. A change that keeps a file's size and time and touches no sample goes unseen; "full" reads every byte,
    and does not look at times. Weights without files (dummy, remote) get a digest of their own, equal to no other:
    their pages die with the process.
    """
    files = _weight_files(Path(model_path)) or _hub_files(model_path, revision, download_dir)
    if load_format in _RANDOM_FORMATS or not files:
        return unnamed_weights()
    digest = xxhash.xxh3_128()
    for path in files:
        state = path.stat()
        digest.update(f"{path.name}:{state.st_size}:{state.st_mtime_ns if mode == 'sampled' else ''}:".encode())
        with open(path, "rb") as file:
            pieces = _every_byte(file) if mode == "full" else _samples(file, path)
            for piece in pieces:
                digest.update(piece)
    return f"{mode}-{digest.hexdigest()}"


def unnamed_weights() -> str:
    """A digest for weights that no file describes; never the same twice."""
    return "unnamed-" + secrets.token_hex(16)


def _weight_files(place: Path) -> list[Path]:
    if place.is_file():
        return [place]
    return sorted(path for path in place.glob("*") if path.suffix in _WEIGHT_SUFFIXES) if place.is_dir() else []


def _hub_files(model_path: str, revision: str | None, download_dir: str | None) -> list[Path]:
    """Weight files of a model that SGLang loaded from the local hub cache, or nothing."""
    try:
        from huggingface_hub import snapshot_download

        place = snapshot_download(model_path, revision=revision, cache_dir=download_dir, local_files_only=True)
    except Exception as error:  # noqa: BLE001 - any failure means the same: no files known
        logger.warning("swift-tiers: no weight files found for %s (%s): its pages are not kept", model_path, error)
        return []
    return _weight_files(Path(place))


def _every_byte(file: Any) -> Iterator[bytes]:
    while piece := file.read(2**24):
        yield piece


def _samples(file: Any, path: Path) -> Iterator[bytes]:
    size = os.fstat(file.fileno()).st_size
    starts: list[int] = []
    if path.suffix == ".safetensors":
        (header_bytes,) = struct.unpack("<Q", file.read(8))
        header = file.read(header_bytes)
        yield header
        for name, tensor in json.loads(header).items():
            if name != "__metadata__":
                first, last = (8 + header_bytes + offset for offset in tensor["data_offsets"])
                middle = (first + last) // 2
                starts += [first, middle, max(first, last - SAMPLE_BYTES)]
    else:
        starts = [*range(0, size, SAMPLE_DISTANCE), max(0, size - SAMPLE_BYTES)]
    for start in sorted(set(starts)):
        file.seek(start)
        yield file.read(SAMPLE_BYTES)


def config_digest(config: dict[str, Any]) -> str:
    """Hex digest of a model's configuration, without what cannot change its KV."""
    relevant = {name: value for name, value in config.items() if name not in _IRRELEVANT}
    return xxhash.xxh3_128_hexdigest(json.dumps(relevant, sort_keys=True, default=str).encode())


def server_namespace(
    server_args: Any, kvcache: Any, geometry: PageGeometry, ranks: str, weights_mode: Literal["sampled", "full"]
) -> Namespace:
    """The namespace of one rank of a running server. Reads the weight files; not on a hot path."""
    from sglang.srt.arg_groups.model_override_base import model_config_of

    model_config = model_config_of(server_args)
    return Namespace(
        model=config_digest(model_config.hf_config.to_dict()),
        weights=weights_digest(
            server_args.model_path,
            str(server_args.load_format),
            weights_mode,
            revision=server_args.revision,
            download_dir=server_args.download_dir,
        ),
        dtype=f"{kvcache.dtype} of {model_config.dtype}",
        geometry=geometry,
        first_layer=kvcache.start_layer,
        kv_heads=kvcache.head_num,
        head_dim=kvcache.head_dim,
        rank=ranks,
        quantization=str(getattr(model_config, "quantization", None) or ""),
        loading=loading_digest(server_args, weights_mode),
    )


#: Arguments that change what is computed from the same files.
_LOADING_ARGUMENTS = (
    "load_format", "quantization", "kv_cache_dtype", "torchao_config", "rl_quant_profile", "model_impl",
    "model_loader_extra_config", "modelopt_quant",
)  # fmt: skip


def loading_digest(server_args: Any, weights_mode: Literal["sampled", "full"]) -> str:
    """Hex digest of how the weights are loaded, of the KV scales' file, and of the adapters given at start.

    SGLang names an adapter by its name and path, so one that is trained anew in its place would otherwise keep its
    pages.
    """
    facts: dict[str, Any] = {name: getattr(server_args, name, None) for name in _LOADING_ARGUMENTS}
    scales = getattr(server_args, "quantization_param_path", None)
    facts["scales"] = xxhash.xxh3_128_hexdigest(Path(scales).read_bytes()) if scales else None
    facts["adapters"] = [(name, weights_digest(path, "auto", weights_mode)) for name, path in _adapters(server_args)]
    return config_digest(facts)


def _adapters(server_args: Any) -> Iterator[tuple[str, str]]:
    """(name, path) of every `--lora-paths` entry, whatever form it has by now: text, mapping, or SGLang's record."""
    given = getattr(server_args, "lora_paths", None) or []
    for adapter in given.items() if isinstance(given, dict) else given:
        if isinstance(adapter, tuple):
            yield str(adapter[0]), str(getattr(adapter[1], "lora_path", adapter[1]))
        elif isinstance(adapter, dict):
            yield str(adapter.get("lora_name")), str(adapter["lora_path"])
        elif isinstance(adapter, str):
            yield adapter, adapter.partition("=")[2] or adapter
        else:
            yield str(adapter.lora_name), str(adapter.lora_path)
