"""What torch's door to CUDA's runtime lacks, over a library that remembers errors as the real one does."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from swift_tiers.kernels.cuda_runtime import CudaRuntime, Rows

MEMCPY_DEFAULT = 4
NOT_PERMITTED = 800


class Function:
    """Of a C library: its `argtypes` may be set."""

    def __init__(self, do: Any) -> None:
        self._do = do

    def __call__(self, *arguments: Any) -> Any:
        assert len(arguments) == len(self.argtypes)
        return self._do(*arguments)


class FakeLibrary:
    """`failing`: what every call but one returns, and leaves behind."""

    def __init__(self) -> None:
        self.failing = 0
        self.left_behind = 0
        self.calls: list[tuple[Any, ...]] = []
        self.cudaMemcpy2DAsync = Function(self._do)
        self.cudaMemcpyBatchAsync = Function(self._do_list)
        self.cudaHostRegister = Function(self._do)
        self.cudaHostUnregister = Function(self._do)
        self.cudaGetLastError = Function(self._take)

    def _do(self, *arguments: Any) -> int:
        self.calls.append(arguments)
        self.left_behind = self.failing or self.left_behind
        return self.failing

    def _do_list(
        self, targets: int, sources: int, lengths: int, count: int, attributes: int, first: int, kinds: int, stream: int
    ) -> int:
        """Reads its lists before it returns, as the real one does."""
        lists = (
            np.ctypeslib.as_array((ctypes.c_uint64 * count).from_address(there)).tolist()
            for there in (targets, sources, lengths)
        )
        (order, *_) = np.ctypeslib.as_array((ctypes.c_int * 6).from_address(attributes)).tolist()
        return self._do(*zip(*lists, strict=True), order, ctypes.c_size_t.from_address(first).value, kinds, stream)

    def _take(self) -> int:
        error, self.left_behind = self.left_behind, 0
        return error


def test_a_copy_of_rows() -> None:
    library = FakeLibrary()
    CudaRuntime(library).copy_rows(Rows(1000, 64), Rows(9000, 128), 48, 3, 77)
    assert library.calls == [(9000, 128, 1000, 64, 48, 3, MEMCPY_DEFAULT, 77)]


def test_a_list_of_copies() -> None:
    library = FakeLibrary()
    runtime = CudaRuntime(library)
    assert runtime.copies_lists
    runtime.copy_list(np.array([1000, 5000], np.uint64), np.array([9000, 70], np.uint64), 48, 77)
    in_stream_order = 1
    assert library.calls == [((9000, 1000, 48), (70, 5000, 48), in_stream_order, 0, 1, 77)]
    library.failing = NOT_PERMITTED
    with pytest.raises(RuntimeError, match="cudaMemcpyBatchAsync failed with error 800"):
        runtime.copy_list(np.zeros(1, np.uint64), np.zeros(1, np.uint64), 1, 0)
    assert library.left_behind == 0


def test_an_older_runtime_is_not_asked_for_lists() -> None:
    """CUDA 12's function of that name takes other arguments."""
    library = FakeLibrary()
    assert not CudaRuntime(library, lists=False).copies_lists
    assert not hasattr(library.cudaMemcpyBatchAsync, "argtypes")


def test_what_fails_is_not_blamed_on_the_next_kernel() -> None:
    """Torch asks for the thread's last error after each launch."""
    library = FakeLibrary()
    runtime = CudaRuntime(library)
    assert runtime.page_lock(4096, 8192) == 0
    library.failing = NOT_PERMITTED
    assert runtime.page_lock(4096, 8192) == NOT_PERMITTED
    assert library.left_behind == 0
    assert runtime.page_unlock(4096) == NOT_PERMITTED, "memory that was not locked"
    assert library.left_behind == 0
    with pytest.raises(RuntimeError, match="cudaMemcpy2DAsync failed with error 800"):
        runtime.copy_rows(Rows(0, 1), Rows(0, 1), 1, 1, 0)
    assert library.left_behind == 0
