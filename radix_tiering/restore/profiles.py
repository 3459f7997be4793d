"""Saved costs: one file for each model on each kind of machine, written by `swift-tiers profile`, read by a server.

A file is JSON and may be read by anyone; it is not meant to be changed by hand, and a digest over its content tells if
it was, or if it was damaged.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

import msgspec
import xxhash

from ..base.errors import ConfigError
from ..base.home import user_cache
from ..base.page import Namespace
from .cost import CostModel
from .fitting import ComputeSample, LoadSample, Residuals

#: Of the file. One of another version is made anew, not translated: a profile takes a minute.
VERSION = 1
AGAIN = "run `swift-tiers profile` again"


class ProfileError(ConfigError):
    """A profile that cannot be used, or not be written. The message names the file and the remedy."""


class ModelIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """What the costs of a model depend on, besides the machine. All ranks of a server have the same."""

    model: str  # digest of the model's configuration; the weights' values change no time
    dtype: str  # of the KV cache and of the model
    quantization: str
    tensor_size: int  # ranks that share the model
    layers: int
    page_tokens: int
    page_bytes: int  # of one rank

    @classmethod
    def of(cls, namespace: Namespace) -> ModelIdentity:
        """That of the pages of a rank. Raises ValueError where its rank is not named as `sglang_ext` does."""
        return cls(
            model=namespace.model,
            dtype=namespace.dtype,
            quantization=namespace.quantization,
            tensor_size=int(namespace.rank.partition("/")[2]),
            layers=namespace.geometry.layers,
            page_tokens=namespace.geometry.tokens,
            page_bytes=namespace.geometry.page_bytes,
        )


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """What `swift-tiers profile` found."""

    model: ModelIdentity
    hardware: str  # as `sglang_ext.hardware` names it
    name: str  # of the model, for people
    made: str  # date and time, ISO 8601 with its zone
    versions: dict[str, str]  # of swift-tiers, sglang and torch
    costs: CostModel
    chunk_tokens: int  # of the server that was measured
    compute_samples: tuple[ComputeSample, ...]
    source_samples: dict[str, tuple[LoadSample, ...]]
    residuals: dict[str, Residuals]  # "compute", and sources by name


class _File(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    digest: str
    profile: msgspec.Raw


class _Version(msgspec.Struct):
    version: int


def profile_directory() -> Path | None:
    """Where profiles are looked for: `$XDG_CACHE_HOME/swift-tiers/profiles`; None: nowhere, see `user_cache`."""
    return user_cache("profiles")


def profile_path(model: ModelIdentity, hardware: str, directory: Path | None = None) -> Path:
    """The file of one model on one kind of machine, whether it is there or not. Raises ProfileError where there is no
    directory."""
    directory = directory or profile_directory()
    if directory is None:
        raise ProfileError("profile: this user has no home directory to keep it in; set XDG_CACHE_HOME, or name --out")
    digest = xxhash.xxh3_64_hexdigest(msgspec.json.encode([model, hardware], order="sorted"))
    words = re.sub(r"[^a-z0-9]+", "-", hardware.lower()).strip("-")[:64]
    return directory / f"{words}-{digest}.json"


def find_profile(model: ModelIdentity, hardware: str, directory: Path | None = None) -> Profile | None:
    """The profile of this model on this kind of machine; None if there is none. Raises ProfileError."""
    directory = directory or profile_directory()
    if directory is None:
        return None
    path = profile_path(model, hardware, directory)
    return load_profile(path, model, hardware) if path.exists() else None


def load_profile(path: Path, model: ModelIdentity | None = None, hardware: str | None = None) -> Profile:
    """The profile in `path`, checked to be whole, and of `model` and `hardware` where these are given.

    Raises ProfileError.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ProfileError(f"profile {path}: cannot be read ({error.strerror}); {AGAIN}") from None
    try:
        version = msgspec.json.decode(content, type=_Version).version
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise ProfileError(f"profile {path}: is damaged, or no profile; {AGAIN}") from None
    if version != VERSION:
        raise ProfileError(f"profile {path}: has format {version}, this swift-tiers reads {VERSION}; {AGAIN}")
    try:
        file = msgspec.json.decode(content, type=_File)
        profile = msgspec.json.decode(file.profile, type=Profile)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise ProfileError(f"profile {path}: is damaged; {AGAIN}") from None
    if file.digest != _digest(profile):
        raise ProfileError(f"profile {path}: was damaged or changed (its digest does not match); {AGAIN}")
    if model is not None and model != profile.model:
        raise ProfileError(
            f"profile {path}: is of {profile.name} with another {_difference(profile.model, model)}; "
            f"{AGAIN} for this server, or name the profile that is of it"
        )
    if hardware is not None and hardware != profile.hardware:
        raise ProfileError(f"profile {path}: was made on {profile.hardware}, this is {hardware}; {AGAIN} here")
    return profile


def save_profile(profile: Profile, path: Path) -> None:
    """Write it, whole or not at all; directories are made. Raises ProfileError."""
    content = msgspec.json.encode(profile)
    digest = _digest(msgspec.json.decode(content, type=Profile))  # of what will be read
    file = _File(version=VERSION, digest=digest, profile=msgspec.Raw(content))
    text = msgspec.json.format(msgspec.json.encode(file), indent=1) + b"\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as scratch:
            try:
                scratch.write(text)
                scratch.flush()
                os.fsync(scratch.fileno())
                os.replace(scratch.name, path)
            except BaseException:
                os.unlink(scratch.name)
                raise
    except OSError as error:
        raise ProfileError(f"profile {path}: cannot be written ({error.strerror}); name another with --out") from None


def _digest(profile: Profile) -> str:
    """Over the content, not over its spaces."""
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode(profile, order="sorted"))


def _difference(one: ModelIdentity, other: ModelIdentity) -> str:
    """What they differ in, in words."""
    names = [name for name in one.__struct_fields__ if getattr(one, name) != getattr(other, name)]
    return " and ".join(
        f"{name} ({getattr(one, name)}, here {getattr(other, name)})".replace("_", " ") if name != "model" else name
        for name in names
    )
