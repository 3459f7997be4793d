"""The fake is NVML as far as it goes: its functions are called as the binding's are, and fail as they do."""

from __future__ import annotations

import inspect

import pynvml
import pytest

from swift_tiers.radix_tiering.gpus import nvml

from support.fake_nvml import FakeGpu, FakeNvml

FUNCTIONS = [name for name in vars(FakeNvml) if name.startswith("nvml")]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_take_what_the_binding_takes(name: str) -> None:
    ours, theirs = getattr(FakeNvml, name), inspect.unwrap(getattr(pynvml, name))
    assert list(inspect.signature(ours).parameters)[1:] == list(inspect.signature(theirs).parameters)


def test_everything_that_is_called_is_in_the_fake() -> None:
    text = inspect.getsource(nvml)
    called = {word.partition("(")[0] for word in text.replace(",", "(").replace(")", "(").split("self._nvml.")[1:]}
    functions = {name.split()[0] for name in called if name.startswith("nvml")}
    assert functions == set(FUNCTIONS)


def test_without_being_opened_nothing_is_answered() -> None:
    library = FakeNvml(FakeGpu(0))
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        library.nvmlDeviceGetCount()


def test_the_binding_without_a_driver_fails_as_the_fake_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real binding on a machine without the library, whatever this one has."""

    def no_library(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "CDLL", no_library)
    with pytest.raises(nvml.NoNvml, match=r"^no NVIDIA driver here$"):
        nvml.Nvml()
    library = FakeNvml()
    library.absent = pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
    with pytest.raises(nvml.NoNvml, match=r"^no NVIDIA driver here$"):
        nvml.Nvml(library)
