"""SGLang's own storage backends as drivers of the remote tier."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sglang.srt.server_args import ServerArgs

from swift_tiers.radix_tiering.base.errors import ConfigError
from swift_tiers.radix_tiering.base.page import PageGeometry
from swift_tiers.radix_tiering.base.read_config import parse_config
from swift_tiers.radix_tiering.base.units import Duration
from swift_tiers.radix_tiering.tiers.remote import ChildEngine, RemoteTier
from swift_tiers.radix_tiering.tiers.remote.remote_tier import arrival_slots, object_shape
from swift_tiers.sglang_ext.build.assembly import Rank, check_machine
from swift_tiers.sglang_ext.build.remote_side import (
    DIRECTORY_VARIABLES,
    DRIVER,
    known_engines,
    read_salt,
    shared_scope,
    store_directories,
)
from swift_tiers.sglang_ext.remote_driver import open_backend

from support.engine import GEOMETRY, get, make_stack, put, wait_until
from support.remote import RUN, SHAPE, remote_config, run_of, snapshot, wait_sent

STRIDE = 8192


def driver(directory: Path, slots: int = 6, stride: int = STRIDE) -> tuple[Any, np.ndarray]:
    memory = np.zeros((slots, stride), np.uint8)
    return open_backend("file", {"file_storage_path": str(directory)}, memory), memory


def test_what_one_writes_another_finds(tmp_path: Path) -> None:
    one, memory = driver(tmp_path)
    memory[:3] = np.random.default_rng(1).integers(0, 256, (3, STRIDE), np.uint8)
    assert one.put(["st1-a", "st1-b"], [0, 1]) == [True, True]
    other, into = driver(tmp_path)
    assert other.exists(["st1-a", "st1-b", "st1-c"]) == 2
    assert other.exists(["st1-c", "st1-a"]) == 0
    assert other.get(["st1-b", "st1-c", "st1-a"], [3, 4, 5]) == [True, False, True]
    assert np.array_equal(into[[3, 5]], memory[[1, 0]])


def test_an_object_that_is_too_short_harms_no_other_one(tmp_path: Path) -> None:
    one, memory = driver(tmp_path)
    memory[:2] = 7
    one.put(["st1-a", "st1-b"], [0, 1])
    (short,) = tmp_path.glob("st1-a*")
    os.truncate(short, STRIDE // 2)
    assert one.get(["st1-a", "st1-b"], [2, 3]) == [False, True]


@pytest.mark.parametrize("engine", ["file", pytest.param("nixl", marks=pytest.mark.exhaustive)])
def test_an_engine_of_files_in_its_child_beneath_a_stack(
    tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has left host memory comes back from files, but for an object that was cut short."""
    options: dict[str, Any] = {"file_storage_path": str(tmp_path)}
    if engine == "nixl":
        pytest.importorskip("nixl", reason="pip install nixl")
        monkeypatch.setenv("SGLANG_HICACHE_NIXL_BACKEND_STORAGE_DIR", str(tmp_path))
        options = {"plugin": {"posix": {"active": True}}}

    def open_engine(tell: Callable[[Any], None]) -> ChildEngine:
        return ChildEngine(DRIVER, engine, options, 8, SHAPE.stride, tell)

    # So long for a question: nothing is to hang on how busy this machine is.
    config = remote_config(lookup_deadline=Duration(1.0))
    tier = RemoteTier(SHAPE, config, open_engine, page_tokens=GEOMETRY.tokens, read_seconds=30.0)
    stack = make_stack(2 * RUN, others=[tier])
    wait_until(lambda: tier.snapshot().ready, "the child is never ready")
    keys = run_of("a", 2)
    put(stack, keys)
    wait_sent(stack)
    objects = sorted(tmp_path.rglob("st1-*"))
    assert len(objects) == 2 * RUN // SHAPE.pages
    assert {one.stat().st_mode & 0o777 for one in objects} == {0o600}
    put(stack, run_of("b", 2))
    wait_sent(stack)
    assert stack.probe(keys) == 0
    assert get(stack, keys) == 2 * RUN
    assert snapshot(stack).bad == snapshot(stack).absent == 0
    for cut in {*tmp_path.rglob("st1-*")} - {*objects}:
        os.truncate(cut, SHAPE.stride // 2)
    assert get(stack, run_of("b", 2)) == 0
    assert snapshot(stack).bad + snapshot(stack).absent > 0


def test_who_shares_with_whom() -> None:
    arguments = SimpleNamespace(
        attention_backend=None, prefill_attention_backend=None, decode_attention_backend=None,
        dsa_prefill_backend=None, dsa_decode_backend=None,
        _resolved_overrides=[("default", {"attention_backend": "fa3"})],
    )  # fmt: skip
    same, hardware = parse_config({"remote": {"engine": "file"}}), {"engine": "file", "share": "any-hardware"}
    assert "fa3" in shared_scope(same, arguments)
    assert shared_scope(parse_config({"remote": hardware}), arguments) == ""


def test_of_a_latent_that_all_ranks_have_one_rank_writes() -> None:
    latent = PageGeometry(layers=2, planes=1, tokens=16, row_bytes=64)
    heads = PageGeometry(layers=2, planes=2, tokens=16, row_bytes=64)
    ranks = [Rank(tensor, 2, 0, 1) for tensor in range(2)]
    assert [rank.identity_of(latent) for rank in ranks] == ["tp*/2"] * 2
    assert [rank.shares(latent) for rank in ranks] == [True, False]
    assert [rank.identity_of(heads) for rank in ranks] == ["tp0/2", "tp1/2"]
    assert all(rank.shares(heads) for rank in ranks)
    assert Rank(0, 1, 0, 1).identity_of(latent) == "tp0/1"


def test_a_salt_is_a_file_of_its_owners_alone(tmp_path: Path) -> None:
    file = tmp_path / "salt"
    config = parse_config({"remote": {"engine": "file", "salt_file": str(file)}})
    with pytest.raises(ConfigError, match=r"salt_file: .*cannot be read"):
        read_salt(config)
    file.write_text("a secret\n")
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_salt(config)
    file.chmod(0o600)
    assert read_salt(config) == b"a secret"
    file.write_text("s" * 65)
    with pytest.raises(ConfigError, match="more than 64 bytes"):
        read_salt(config)
    assert read_salt(parse_config({})) == b""


@pytest.mark.parametrize("name", ["moncake", "none", "Mooncake"])
def test_an_engine_that_sglang_has_no_driver_for_ends_a_start_before_a_model_is_loaded(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"remote\.engine: SGLang has no storage backend '{name}'; .*, mooncake, .*"):
        check_machine(parse_config({"remote": {"engine": name}}), 1)


def test_every_engine_that_sglang_has_a_driver_for_may_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own command line has the same names."""
    (argument,) = ServerArgs.__annotations__["hicache_storage_backend"].__metadata__
    assert set(argument.choices) == set(known_engines())
    monkeypatch.setenv(DIRECTORY_VARIABLES["nixl"], "/mnt/kv")
    options = {"backend_name": "ours", "file_storage_path": "/mnt/kv"}
    for name in known_engines():
        check_machine(parse_config({"remote": {"engine": name, "options": options}}), 1)


def named(engine: str, **options: Any) -> list[str]:
    remote = parse_config({"remote": {"engine": engine, "options": options}}).remote
    return [str(path) for path in store_directories(remote)]


def test_an_engine_of_files_that_is_told_no_directory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang's own choice is one below /tmp, which any user can make first."""
    for variable in DIRECTORY_VARIABLES.values():
        monkeypatch.delenv(variable, raising=False)
    refused = [("file", {}, "file_storage_path"), ("file", {"file_storage_path": ""}, "file_storage_path")]
    refused += [
        ("nixl", {"plugin": {name: {"active": True}}}, DIRECTORY_VARIABLES["nixl"]) for name in ("posix", "gds")
    ]
    refused += [("nixl", {"file_storage_path": "/mnt/kv"}, DIRECTORY_VARIABLES["nixl"])]
    for engine, options, remedy in refused:
        with pytest.raises(
            ConfigError, match=rf"remote\.engine: {engine} is told no directory, .* name one by .*{remedy}"
        ):
            check_machine(parse_config({"remote": {"engine": engine, "options": options}}), 1)
    objects = {"posix": {"active": False}, "obj": {"active": "true"}}
    assert named("nixl", plugin=objects) == named("mooncake") == named("hf3fs") == []
    monkeypatch.setenv("SGLANG_HICACHE_NIXL_BACKEND_PLUGIN", "OBJ")
    assert named("nixl") == []
    monkeypatch.setenv(DIRECTORY_VARIABLES["nixl"], "/mnt/a, /mnt/b")
    assert named("nixl", plugin={"posix": {"active": True}}) == ["/mnt/a", "/mnt/b"]


@pytest.mark.parametrize("by", ["option", "variable", "both"])
def test_the_directory_is_the_one_that_sglang_takes(by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DIRECTORY_VARIABLES["file"], raising=False)
    options = {} if by == "variable" else {"file_storage_path": str(tmp_path / "option")}
    if by != "option":
        monkeypatch.setenv(DIRECTORY_VARIABLES["file"], str(tmp_path / "variable"))
    (directory,) = named("file", **options)
    open_backend("file", options, np.zeros((2, STRIDE), np.uint8))
    assert [str(path) for path in tmp_path.iterdir()] == [directory]


@pytest.mark.parametrize(
    ("memory", "before", "after"), [("3MiB", True, True), ("4MiB", False, True), ("17MiB", False, False)]
)
def test_arrival_memory_too_small_for_any_model_is_refused_before_one_is_loaded(
    memory: str, before: bool, after: bool
) -> None:
    config = parse_config({"remote": {"engine": "file", "options": {"file_storage_path": "/mnt/kv"}, "memory": memory}})
    shape = object_shape(PageGeometry(layers=8, planes=2, tokens=16, row_bytes=1024), config.remote)
    assert shape.pages * shape.page_bytes == config.remote.object, "pages that fill it"

    def is_refused(check: Callable[[], object]) -> bool:
        try:
            check()
        except ConfigError as error:
            return str(error).startswith("remote.memory: ")
        return False

    assert is_refused(lambda: check_machine(config, 1)) is before
    assert is_refused(lambda: arrival_slots(config.remote, shape.stride)) is after


def test_what_a_model_makes_smaller_objects_of_is_not_refused_before_it_is_known() -> None:
    config = parse_config(
        {"remote": {"engine": "file", "options": {"file_storage_path": "/mnt/kv"}, "object": "64MiB"}}
    )
    check_machine(config, 1)
    small = object_shape(PageGeometry(layers=36, planes=2, tokens=16, row_bytes=1024), config.remote)
    assert arrival_slots(config.remote, small.stride) >= 4
