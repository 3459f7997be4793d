"""The digest of what a model is loaded from: its weights, its configurations, and its code; and of loaded adapters.

The files are looked at before the model is loaded and again afterwards. What was loaded in between is what the digest
says only if nothing has changed: otherwise the pages are of this process alone.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch
import xxhash

from ..pools.supported import drafts_by_model
from .content_names import ContentNames, FileChangedError, FileState
from .least import AllReduce, least_and_most

logger = logging.getLogger(__name__)

#: Ids of adapters of which is remembered what they hold: many more than are loaded at one time.
_ADAPTERS_KNOWN = 4096
_WEIGHTS = {".safetensors", ".bin", ".pt", ".pth", ".gguf"}
#: Configurations (of quantisation), code that comes with a model, tokenizers.
_SMALL = {".json", ".py", ".jinja", ".model", ".txt", ".tiktoken"}
#: How names of weights begin that no file describes.
_UNNAMED = "unnamed-"
#: Formats that load the files of the model's own folder. All others invent weights, or have them from elsewhere: from
#: another server, or from files below that folder that were made of it some time ago (`presharded`, `npcache`).
_FILE_FORMATS = {
    "auto", "pt", "safetensors", "instanttensor", "sharded_state", "gguf", "bitsandbytes", "mistral", "layered",
    "fastsafetensors", "runai_streamer",
}  # fmt: skip
_ELSEWHERE = "remote"
#: What an adapter's configuration says of where it was made.
_PLACES = {"base_model_name_or_path", "revision"}
#: Priority of the thread that reads files while the model is loaded: it takes what that leaves of the processors.
_NICE = 10


class Source(NamedTuple):
    """Where a model is loaded from."""

    path: str  # a folder, a file, or the name of a repository of the hub
    load_format: str = "auto"
    revision: str | None = None
    download_dir: str | None = None


def unnamed_weights() -> str:
    """A digest for weights that no file describes; never the same twice."""
    return _UNNAMED + secrets.token_hex(16)


def are_unnamed(weights: str) -> bool:
    """Whether a digest is of `unnamed_weights`."""
    return weights.startswith(_UNNAMED)


class LoadedFiles:
    """The files of some sources, from before they are loaded until their digests are asked for."""

    def __init__(self, sources: Sequence[Source], names: ContentNames, settings: Sequence[str] = ()) -> None:
        """Looks at the files, and begins to read those whose content is not known, on a thread of its own; `settings`
        are small files, read at once."""
        self._names = names
        self._settings = {path: setting_digest(path) for path in settings}
        self._before = {source: _states(_files(source)) for source in dict.fromkeys(sources)}
        self._found: dict[FileState, str] = {}
        self._reader = threading.Thread(target=self._read, name="swift-weights", daemon=True)
        self._reader.start()

    def digest(self, source: Source) -> str:
        """Hex digest of the content of `source`'s files, once it has been loaded. Waits until they have been read.

        Equal bytes under equal names have equal digests, wherever they lie and however they came there. Files without
        a description (dummy, remote), and files that have changed since before they were loaded, get a digest of their
        own, equal to no other: their pages die with the process. A source that was not given at first is read now.
        """
        before = self._before.get(source)
        files = _files(source)
        if not any(file.suffix in _WEIGHTS for file in files):
            if source.load_format in _FILE_FORMATS:
                logger.warning(
                    "swift-tiers: no files of %s are found, so nobody knows what was loaded: its pages serve this "
                    "process only, and none is found again after a restart. Give --model-path a folder that has them",
                    source.path,
                )
            return unnamed_weights()
        self._reader.join()
        try:
            now = _states(files)
            if before is not None:
                _check_unchanged(before, now)
            digest = xxhash.xxh3_128()
            for file, state in now.items():
                name = self._found.get(state) or self._names.of(file)
                digest.update(f"{file.name}:{state.size}:{name}\n".encode())
            if _states(files) != now:
                raise FileChangedError(f"files of {source.path} changed while they were read")
        except (OSError, FileChangedError) as error:
            logger.warning(
                "swift-tiers: what %s was loaded from is not known: %s; its pages serve this process only. Restart the "
                "server when its files are complete",
                source.path,
                error,
            )
            return unnamed_weights()
        return digest.hexdigest()

    def setting(self, path: str) -> str:
        """Hex digest of a small file's content; as of weights that nobody knows if it is not what it was."""
        now = setting_digest(path)
        return unnamed_weights() if now is None or self._settings.get(path, now) != now else now

    def _read(self) -> None:
        """On "swift-weights". What fails here fails again where somebody can be told."""
        try:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        except OSError:
            pass  # a thread like others, then
        for files in self._before.values():
            for file, state in files.items():
                try:
                    self._found[state] = self._names.of(file)
                except (OSError, FileChangedError):
                    continue


def sources_of(view: Any) -> list[Source]:
    """Whatever a server loads before it serves; the model first. `view`: SGLang's arguments, resolved."""
    model = Source(view.model_path, _load_format(view), view.revision, view.download_dir)
    draft = draft_of(view)
    return [model, *([] if draft is None else [draft])]


def draft_of(view: Any) -> Source | None:
    """What the model that drafts is loaded from; None where none does."""
    if not drafts_by_model(getattr(view, "speculative_algorithm", None)):
        return None
    return Source(
        view.speculative_draft_model_path or view.model_path,
        str(view.speculative_draft_load_format or _load_format(view)),
        # What SGLang takes for one that is named without a revision, whichever the model's is.
        view.speculative_draft_model_revision or ("main" if view.speculative_draft_model_path else view.revision),
        view.download_dir,
    )


def _load_format(view: Any) -> str:
    if getattr(view, "weight_cache_mode", "off") == "client":
        return _ELSEWHERE  # a process that keeps weights for others does not say of which files they were
    return str(view.load_format)


class LoadedAdapters:
    """The contents of the LoRA adapters that SGLang has loaded. Scheduler's thread.

    SGLang names an adapter anew each time that it is loaded, also where it had to make room for another one meanwhile,
    and one that is given at its start by name and path, whatever lies there.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[str, str | None] = OrderedDict()

    def content(self, manager: Any, adapter_id: str, all_reduce: AllReduce) -> str | None:
        """32 hex digits for an adapter that SGLang's `LoRAManager` has loaded: equal for equal weights, for the same
        modules, scaled alike, on every machine. None unless every rank has the same of that id. Reads all weights of an
        adapter the first time that an id is asked for, on several threads.

        Ranks that run the same requests have to ask for the same ids in the same order: what they make of one is
        agreed on, since prefixes that one of them found alone would part them.
        """
        if adapter_id not in self._known:
            found = _digest_of_loaded(manager, adapter_id)
            # None is another than all digests: one word more.
            words = [0] * 5 if found is None else [1, *(int(found[at : at + 8], 16) for at in range(0, 32, 8))]
            said = least_and_most(words, all_reduce)  # asked by every rank, whatever it has found
            if found is None or any(low != high for low, high in said):
                logger.warning("swift-tiers: what adapter %s holds is not known on all ranks", adapter_id)
                found = None
            self._known[adapter_id] = found
            if len(self._known) > _ADAPTERS_KNOWN:
                self._known.popitem(last=False)
        self._known.move_to_end(adapter_id)
        return self._known[adapter_id]


def _digest_of_loaded(manager: Any, adapter_id: str) -> str | None:
    adapter = manager.loras.get(adapter_id)
    if adapter is None:
        return None
    try:
        # What an adapter has for none of these modules is left out of what it computes.
        return _adapter_digest(adapter, sorted(map(str, manager.target_modules)))
    except Exception:  # on the scheduler's thread it would end the server
        logger.exception(
            "swift-tiers: what adapter %s holds cannot be read; its pages serve this load only", adapter_id
        )
        return None


def _adapter_digest(adapter: Any, modules: list[str]) -> str:
    config = {name: value for name, value in adapter.config.hf_config.items() if name not in _PLACES}
    facts = [config, adapter.config.added_tokens_config, adapter.scaling, modules]
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode())
    places = [layer.weights for layer in adapter.layers]
    places += [adapter.embedding_layers, adapter.added_tokens_embeddings]
    named = [(f"{at} {name}", weights[name]) for at, weights in enumerate(places) for name in sorted(weights)]
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for (name, weight), content in zip(named, pool.map(_tensor_digest, [one for _, one in named]), strict=True):
            digest.update(f"\n{name} {weight.dtype} {tuple(weight.shape)} {content}".encode())
    return digest.hexdigest()[:32]  # as long as SGLang's own name for it


def _tensor_digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()).hexdigest()


def _files(source: Source) -> list[Path]:
    if source.load_format not in _FILE_FORMATS:
        return []
    place = Path(source.path)
    if place.is_file():
        return [place]
    if not place.is_dir():
        snapshot = _hub_snapshot(source)
        if snapshot is None:
            return []
        place = snapshot
    return sorted(path for path in place.iterdir() if path.suffix in _WEIGHTS | _SMALL and path.is_file())


def _hub_snapshot(source: Source) -> Path | None:
    """The folder of a model that lies in the local hub cache."""
    try:
        from huggingface_hub import snapshot_download

        cache, revision = source.download_dir, source.revision
        return Path(snapshot_download(source.path, revision=revision, cache_dir=cache, local_files_only=True))
    except Exception as error:  # noqa: BLE001 - any failure means the same: no files known
        logger.info("swift-tiers: no files of %s in the hub cache: %s", source.path, error)
        return None


def setting_digest(path: str) -> str | None:
    """Hex digest of a small file's content; None where it cannot be read."""
    try:
        return xxhash.xxh3_128_hexdigest(Path(path).read_bytes())
    except OSError:
        return None


def _states(files: Sequence[Path]) -> dict[Path, FileState]:
    states = {}
    for file in files:
        try:
            states[file] = FileState.of(file)
        except OSError:
            continue  # it has left meanwhile, which the next look shows
    return states


def _check_unchanged(before: dict[Path, FileState], now: dict[Path, FileState]) -> None:
    """Raise FileChangedError unless the files are what they were, but for those that loading itself fetched."""
    for file, state in before.items():
        if now.get(file) != state:
            raise FileChangedError(f"{file} changed while it was loaded")
    for file in now.keys() - before.keys():
        # The hub's cache only ever gains files that are complete.
        if file.parent.parent.name != "snapshots" or not file.is_symlink():
            raise FileChangedError(f"{file} was added while the model was loaded")
