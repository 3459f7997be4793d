"""Directories of models: what is read of one, and how a SwiftKV model is written, in the published names."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from swift_tiers.sglang_ext.models.later_layers import ARCHITECTURES, LaterLayers

from ...base.errors import USAGE, CommandError

#: The families that can be converted, by `model_type`.
FAMILIES = ("llama", "qwen2", "qwen3")
#: Of a model's files, those that a new one has as they are.
_SMALL = (".json", ".jinja", ".model", ".txt", ".tiktoken", ".md")
_INDEX = "model.safetensors.index.json"
#: The second output matrix of a model that exits early, `[vocabulary, d]`.
EXIT_HEAD = "exit_head_swiftkv.weight"
#: Bytes of a file of weights, at most.
_SHARD_BYTES = 4 << 30


class ModelDirectory:
    """A model's directory: its configuration, and its tensors by name."""

    def __init__(self, directory: Path) -> None:
        """Raises CommandError where there is none."""
        self.directory = directory
        try:
            self.config: dict[str, Any] = json.loads((directory / "config.json").read_text())
        except (OSError, ValueError) as error:
            raise CommandError(f"swiftkv: {directory} is not a model's directory ({error})", USAGE) from None
        if self.config.get("quantization_config"):
            raise CommandError(f"swiftkv: the weights of {directory} are quantised; name a model in bfloat16", USAGE)

    @property
    def family(self) -> str:
        """Raises CommandError for a model that is not of one of `FAMILIES`."""
        kind = str(self.config.get("model_type", "")).removesuffix("_swiftkv")
        if kind not in FAMILIES:
            raise CommandError(
                f"swiftkv: {self.directory} is a model of the kind {kind!r}; {', '.join(FAMILIES)} can be converted",
                USAGE,
            )
        return kind

    @property
    def later(self) -> LaterLayers | None:
        """None of a model that is not of SwiftKV. Raises ConfigError."""
        if not str(self.config.get("model_type", "")).endswith("_swiftkv"):
            return None
        return LaterLayers.of(SimpleNamespace(**self.config))

    def later_for(self, command: str) -> LaterLayers:
        """Of a SwiftKV model, which `command` needs. Raises CommandError for another one, ConfigError."""
        if (later := self.later) is None:
            raise CommandError(
                f"swiftkv {command}: {self.directory} is no SwiftKV model; make one by `swift-tiers swiftkv convert`",
                USAGE,
            )
        return later

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """One after the other, as they lie in the files. Raises CommandError where there are none."""
        from safetensors import safe_open

        files = sorted(self.directory.glob("*.safetensors"))
        if not files:
            raise CommandError(f"swiftkv: {self.directory} has no .safetensors; save the model in that format", USAGE)
        for file in files:
            with safe_open(file, framework="pt") as weights:
                for name in weights.keys():  # noqa: SIM118 - it is no mapping
                    yield name, weights.get_tensor(name)


def write(
    source: ModelDirectory, directory: Path, later: LaterLayers, tensors: Iterable[tuple[str, torch.Tensor]]
) -> None:
    """A SwiftKV model of `source`'s family with all of `tensors`. It appears whole or not at all.

    Raises CommandError if there is something already.
    """
    made = directory.with_name(f".{directory.name}.new")
    if directory.exists():
        raise CommandError(f"swiftkv: {directory} is there already; name another, or take it away", USAGE)
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    for file in source.directory.iterdir():
        if file.is_file() and file.suffix in _SMALL and file.name not in ("config.json", _INDEX):
            shutil.copy(file, made / file.name)
    kind, named = f"{source.family}_swiftkv", dict(tensors)
    config = {
        **source.config,
        "architectures": [ARCHITECTURES[kind]],
        "model_type": kind,
        "swiftkv": True,
        "num_key_value_layers": later.first,
        "key_value_group_size": later.group,
        "swiftkv_exit_head": EXIT_HEAD in named,
    }
    (made / "config.json").write_text(json.dumps(config, indent=1))
    _write_weights(made, named.items())
    os.replace(made, directory)


def _write_weights(directory: Path, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    """In files of `_SHARD_BYTES` at most, with an index where there are several."""
    from safetensors.torch import save_file

    shards: list[dict[str, torch.Tensor]] = [{}]
    places: dict[str, int] = {}
    size = 0

    def save() -> None:
        save_file(shards[-1], directory / f"{len(shards)}.safetensors", metadata={"format": "pt"})

    for name, tensor in tensors:
        if shards[-1] and size + tensor.nbytes > _SHARD_BYTES:
            save()
            shards[-1].clear()
            shards.append({})
            size = 0
        shards[-1][name] = tensor.contiguous()
        places[name] = len(shards)
        size += tensor.nbytes
    save()
    if len(shards) == 1:
        os.rename(directory / "1.safetensors", directory / "model.safetensors")
        return
    names = {number: f"model-{number:05}-of-{len(shards):05}.safetensors" for number in range(1, len(shards) + 1)}
    for number, name in names.items():
        os.rename(directory / f"{number}.safetensors", directory / name)
    index = {"metadata": {}, "weight_map": {name: names[number] for name, number in places.items()}}
    (directory / _INDEX).write_text(json.dumps(index, indent=1))
