"""What torch's door to CUDA's runtime lacks, over a library that remembers errors as the real one does."""

from __future__ import annotations

from typing import Any

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
        self.cudaHostRegister = Function(self._do)
        self.cudaGetLastError = Function(self._take)

    def _do(self, *arguments: Any) -> int:
        self.calls.append(arguments)
        self.left_behind = self.failing or self.left_behind
        return self.failing

    def _take(self) -> int:
        error, self.left_behind = self.left_behind, 0
        return error


def test_a_copy_of_rows() -> None:
    library = FakeLibrary()
    CudaRuntime(library).copy_rows(Rows(1000, 64), Rows(9000, 128), 48, 3, 77)
    assert library.calls == [(9000, 128, 1000, 64, 48, 3, MEMCPY_DEFAULT, 77)]


def test_what_fails_is_not_blamed_on_the_next_kernel() -> None:
    """Torch asks for the thread's last error after each launch."""
    library = FakeLibrary()
    runtime = CudaRuntime(library)
    assert runtime.page_lock(4096, 8192) == 0
    library.failing = NOT_PERMITTED
    assert runtime.page_lock(4096, 8192) == NOT_PERMITTED
    assert library.left_behind == 0
    with pytest.raises(RuntimeError, match="cudaMemcpy2DAsync failed with error 800"):
        runtime.copy_rows(Rows(0, 1), Rows(0, 1), 1, 1, 0)
    assert library.left_behind == 0
