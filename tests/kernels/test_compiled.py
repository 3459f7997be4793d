"""Every kernel, in every shape that is used, compiled for GPUs that are not there: what can be known without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.compile_kernels import MODELS, Compiled

SUPPORT = Path(__file__).parents[1] / "support"
#: Of a multiprocessor, and of a program: 8 programs of 128 threads fit if each thread takes 64 or fewer.
REGISTERS, THREADS = 65536, 128


def run(script: str, cache: Path) -> list[Any]:
    """What a script prints, line by line; in a process of its own, with nothing cached."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    environment["TRITON_CACHE_DIR"] = str(cache)
    command = [sys.executable, str(SUPPORT / script)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Compiled]:
    """All that were compiled, by name."""
    found = [Compiled(**fields) for fields in run("compile_kernels.py", tmp_path_factory.mktemp("triton"))]
    assert len({kernel.name for kernel in found}) == len(found) > 60
    return {kernel.name: kernel for kernel in found}


def test_copies_of_aligned_pages_go_by_16_bytes(kernels):
    names = [f"{way} {model} layer-first" for way in ("gather", "scatter") for model in MODELS]
    names += [f"{way} {model} block-major" for way in ("gather", "scatter") for model in ("Qwen3-8B", "LWM-7B")]
    names += ["gather one layer", "scatter one layer", "gather pages of one token", "gather sm_80", "gather sm_100"]
    for name in names:
        accesses = dict(kernels[name].accesses)
        # Addresses, page and slot of each piece are read too, 8 bytes each; nothing else.
        assert accesses.pop("ld.global.b64") <= 12, name
        assert accesses == {"ld.global.v4.b32": 4, "st.global.v4.b32": 4}, name
        assert kernels[name].registers <= REGISTERS // (8 * THREADS), name


def test_a_wide_program_has_as_much_under_way_for_each_thread(kernels):
    for way in ("gather", "scatter"):
        wide = kernels[f"{way} Qwen3-8B by wide programs"]
        assert {name: count for name, count in wide.accesses.items() if "v4" in name} == {
            "ld.global.v4.b32": 4, "st.global.v4.b32": 4,
        }  # fmt: skip
        assert wide.registers * 8 * THREADS <= REGISTERS, "it fits a multiprocessor"


def test_copies_of_unaligned_pages_go_by_what_their_addresses_allow(kernels):
    for alignment, width in ((8, "v2.b32"), (4, "b32"), (2, "b16"), (1, "b8")):
        for way in ("gather", "scatter"):
            accesses = dict(kernels[f"{way} aligned to {alignment}"].accesses)
            accesses.pop("ld.global.b64")
            assert set(accesses) == {f"ld.global.{width}", f"st.global.{width}"}


def test_pieces_go_by_16_bytes_and_what_is_left_over_by_one(kernels):
    for name in ("pieces", "pieces sm_80", "pieces sm_100"):
        accesses = dict(kernels[name].accesses)
        assert accesses.pop("ld.global.b64") == 3, "a chunk's entry"
        assert accesses == {
            "ld.global.v4.b32": 4, "st.global.v4.b32": 4, "ld.global.b8": 16, "st.global.b8": 16,
        }  # fmt: skip
        assert kernels[name].registers <= REGISTERS // (8 * THREADS), name


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("codec", ["E4M3", "INT8", "INT4"])
def test_values_and_codes_go_by_16_bytes(kernels, codec, dtype):
    values = 8 if dtype == "float32" else 4
    codes = 1 if codec == "INT4" else 2
    encode, decode = (kernels[f"{way} {codec} torch.{dtype}"].accesses for way in ("encode", "decode"))
    assert (encode["ld.global.v4.b32"], encode["st.global.v4.b32"]) == (values, codes)
    assert (decode["ld.global.v4.b32"], decode["st.global.v4.b32"]) == (codes, values)
    for accesses in (encode, decode):
        assert not [name for name in accesses if name.endswith(("b8", "b16"))]


def test_digests_read_by_16_bytes(kernels):
    for name in ("digest of words", "digest sm_80", "digest sm_100"):
        assert kernels[name].accesses == {"ld.global.b64": 1, "ld.global.v2.b64": 4, "st.global.b64": 2}
    for name in ("digest of pages of a layer-first pool", "digest of a pool sm_80", "digest of a pool sm_100"):
        # A page, and a plane's address, are read besides.
        assert kernels[name].accesses == {"ld.global.b64": 2, "ld.global.v2.b64": 4, "st.global.b64": 2}
    assert kernels["digest of pages of a block-major pool"].accesses["ld.global.b64"] == 2 + 8
    assert kernels["digest of bytes"].accesses["ld.global.b8"] == 64


def test_none_spills_registers(kernels):
    assert {name: kernel.spilled for name, kernel in kernels.items() if kernel.spilled} == {}


def test_none_rounds_otherwise_than_the_plain_functions(kernels):
    """A fused product and sum is rounded once, and a flushed subnormal is zero: both give other bits than torch."""
    assert [name for name, kernel in kernels.items() if kernel.flushes or kernel.fused] == []


def test_what_the_wrappers_pass_compiles_once_for_each_layout(tmp_path):
    """Wherever lists and slabs begin, and however many layers there are."""
    [variants] = run("bind_kernels.py", tmp_path)
    kinds = {"copy_pieces": 2, "encode_tiles": 1, "decode_tiles": 1}
    assert variants == {**kinds, "sum_parts": 1, "finish_digests": 1, "copy_chunks": 1}


def test_what_serves_is_compiled_before_it_serves(tmp_path):
    """Every variant that loads, stores, landings and digests launch was launched when the pool was made ready; and none
    that they do not."""
    for host_tier in run("bind_serving.py", tmp_path):
        for name, (prepared, served) in host_tier.items():
            assert prepared == served, name
            if "," in name:
                continue  # with something beside the KV of all tokens, there are kernels of it
            kernels = [variant.split()[0] for variant in served]
            copies = [kernel for kernel in kernels if kernel in ("copy_pieces", "decode_tiles", "encode_tiles")]
            # Across the link, wide where pages are as they are; within the device, where a row is a page of the host
            # tier's or of landing memory alike but for pageable memory.
            assert len(copies) == (2 if "int8" in name and "pageable" not in name else 3), name
            assert set(copies) == ({"decode_tiles", "encode_tiles"} if "int8" in name else {"copy_pieces"})
            assert sorted(set(kernels) - set(copies)) == [
                "copy_chunks", "finish_digests", "sum_parts", *["sum_planes"] * ("int8" not in name),
            ]  # fmt: skip
