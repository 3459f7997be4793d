"""Directories of models: what is read of one, and how a SwiftKV model is written, in the published names."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from swift_tiers.radix_tiering.base.units import format_size
from swift_tiers.sglang_ext.models.later_layers import ARCHITECTURES, LaterLayers

from ...base.errors import USAGE, CommandError

Tensors = dict[str, torch.Tensor]

#: The families that can be converted, by `model_type`.
FAMILIES = ("llama", "qwen2", "qwen3")
#: Of a model's files, those that a new one has as they are.
_SMALL = (".json", ".jinja", ".model", ".txt", ".tiktoken", ".md")
_INDEX = "model.safetensors.index.json"
#: The second output matrix of a model that exits early, `[vocabulary, d]`.
EXIT_HEAD = "exit_head_swiftkv.weight"
#: `[vocabulary, d]`, of every model; what is made is stored in its dtype.
EMBEDDING = "model.embed_tokens.weight"
#: Bytes of a file of weights, at most.
_SHARD_BYTES = 4 << 30


class ModelDirectory:
    """A model's directory: its configuration, and its tensors by name."""

    def __init__(self, directory: Path) -> None:
        """Raises CommandError where there is none."""
        self.directory = directory
        self.config = read_config(directory / "config.json")
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
        if (gate := self.config.get("hidden_act", "silu")) != "silu":
            raise CommandError(
                f"swiftkv: the MLPs of {self.directory} have {gate} for a gate; name a model that has silu, as every "
                "published one of its kind",
                USAGE,
            )
        return kind

    @property
    def layers(self) -> int:
        """Raises CommandError."""
        layers = self.config.get("num_hidden_layers")
        if not isinstance(layers, int) or layers < 2:
            raise CommandError(
                f"swiftkv: num_hidden_layers is {layers!r} in config.json of {self.directory}; name a model of two "
                "layers or more",
                USAGE,
            )
        return layers

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
        """One after the other, as they lie in the files. Raises CommandError where there are none, or they are cut."""
        from safetensors import SafetensorError, safe_open

        files = sorted(self.directory.glob("*.safetensors"))
        if not files:
            raise CommandError(f"swiftkv: {self.directory} has no .safetensors; save the model in that format", USAGE)
        for file in files:
            try:
                with safe_open(file, framework="pt") as weights:
                    for name in weights.keys():  # noqa: SIM118 - it is no mapping
                        yield name, weights.get_tensor(name)
            except (SafetensorError, OSError) as error:
                raise CommandError(f"swiftkv: {file} cannot be read ({error}); fetch the model again", USAGE) from None

    def whole(self) -> Tensors:
        """All of them by their names. Raises CommandError, also where the first of a model is missing."""
        tensors = dict(self.tensors())
        if EMBEDDING not in tensors:
            raise CommandError(
                f"swiftkv: {self.directory} lacks {EMBEDDING}; name a whole model in the names of transformers", USAGE
            )
        return tensors


def read_config(place: Path) -> dict[str, Any]:
    """What a model's `config.json` says. Raises CommandError."""
    try:
        found = json.loads(place.read_text())
        if not isinstance(found, dict):
            raise ValueError("it has no fields")
    except (OSError, ValueError) as error:
        raise CommandError(
            f"swiftkv: {place} cannot be read ({error}); name the directory of a model, which has a config.json", USAGE
        ) from None
    return found


def place_for(directory: Path, command: str) -> None:
    """See to it that a model can be written there, before hours are spent on it. Raises CommandError."""
    if directory.exists():
        raise CommandError(
            f"swiftkv {command}: --out: {directory} is there already; name another, or take it away", USAGE
        )
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory.parent):
            pass
    except OSError as error:
        raise CommandError(
            f"swiftkv {command}: --out: nothing can be written to {directory.parent} ({error.strerror}); name another "
            "place",
            USAGE,
        ) from None


def write(
    source: ModelDirectory,
    directory: Path,
    later: LaterLayers,
    tensors: Iterable[tuple[str, torch.Tensor]],
    beside: Mapping[str, str] | None = None,
) -> None:
    """A SwiftKV model of `source`'s family with all of `tensors`, and `beside`, text by the names of files. It appears
    whole or not at all.

    Raises CommandError if there is something already, or no room.
    """
    made = directory.with_name(f".{directory.name}.new")
    if directory.exists():
        raise CommandError(f"swiftkv: {directory} is there already; name another, or take it away", USAGE)
    shutil.rmtree(made, ignore_errors=True)
    named = dict(tensors)
    try:
        with saying_what_is_full(directory):
            _write_files(source, made, later, named)
            for name, text in (beside or {}).items():
                (made / name).write_text(text)
            os.replace(made, directory)
    finally:
        shutil.rmtree(made, ignore_errors=True)


@contextmanager
def saying_what_is_full(place: Path) -> Iterator[None]:
    """Raises CommandError where what is written within fails: torch and safetensors have errors of their own for it."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        free = shutil.disk_usage(place.parent).free
        raise CommandError(
            f"swiftkv: {place} cannot be written ({' '.join(str(error).split())}); {format_size(free)} are free there: "
            "make room, and give the same command again"
        ) from None


def _write_files(source: ModelDirectory, made: Path, later: LaterLayers, named: Tensors) -> None:
    made.mkdir(parents=True)
    for file in source.directory.iterdir():
        if file.is_file() and file.suffix in _SMALL and file.name not in ("config.json", _INDEX):
            shutil.copy(file, made / file.name)
    kind = f"{source.family}_swiftkv"
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
