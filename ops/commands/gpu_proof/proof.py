"""One command, no network, a few minutes on one GPU: what is right, how fast it is, what is left out and why."""

from __future__ import annotations

import argparse
import gc
import os
import platform
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from swift_tiers.kernels.copy_queue import Accelerator, CudaAccelerator

from . import direct, hidden, right, serving, sglang_kernels, speed
from .figures import RESULTS, Findings, LeftOutError, ProofCheck, ProofFigure, line
from .layouts import LAYOUTS, Layout
from .options import ProofError
from .stopwatch import Stopwatch

#: Exit code: something is wrong, or a bound is missed.
FOUND = 3
#: Of the memory that is free.
_DEVICE_SHARE = 0.6
#: Page-locked at a time.
_HOST_BYTES = 4 * 2**30

#: Of all the time: what random inputs may take, most of it to compile for each of them; and when the last part begins
#: that is not `serving`, which takes longest and would else come off worst.
_RIGHT_SHARE, _BEFORE_SERVING = 0.2, 0.5

#: Another part, of one layout and so many pages.
Part = Callable[[Layout, int], Iterator[ProofCheck | ProofFigure]]


def prove(options: argparse.Namespace) -> int:
    """The command; its exit code. Raises ProofError."""
    layouts = chosen_layouts(options.layouts)
    accelerator = open_accelerator(options.device)
    if options.out is not None:
        check_folder(options.out)
    seed = options.seed if options.seed is not None else int(np.random.SeedSequence().generate_state(1)[0])
    words = f"gpu-proof --seed {seed} --cases {options.cases}"
    if options.only_serving:
        words += " --only-serving"
    if options.layouts:
        words += f" --layouts {options.layouts}"
    findings = Findings({"command": words, **facts(accelerator.device)})
    proof = Proof(
        accelerator,
        findings,
        layouts,
        seed,
        options.cases,
        options.seconds,
        lends=_lending(accelerator, seed),
        only_serving=options.only_serving,
        # After each part: whatever becomes of the next one, or of the machine, this is kept.
        save=partial(_save, findings, options.out),
    )
    proof.run()
    if options.out is not None:
        print(f"written: {' and '.join(RESULTS)} in {options.out}", file=sys.stderr)
    return closing(findings)


def check_folder(folder: Path) -> None:
    """Before anything is measured: that results can be written there, over those of a former run at most. Raises
    ProofError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ProofError(f"--out: {folder}: {error.strerror}; name a directory, or one that can be made") from None
    if not os.access(folder, os.W_OK):
        raise ProofError(f"--out: {folder}: nothing can be written there; name another directory")
    for name in RESULTS:
        path = folder / name
        if os.path.lexists(path) and (path.is_symlink() or not path.is_file()):
            raise ProofError(f"--out: {path} is no file of a former run; name another directory")


def _save(findings: Findings, out: Path | None) -> None:
    if out is not None:
        findings.save(out)


def _lending(accelerator: Accelerator, seed: int) -> Part:
    def lend(layout: Layout, pages: int) -> Iterator[ProofCheck | ProofFigure]:
        # Needs what only servers need.
        from .lending import PAGES, lend_on_cuda

        yield from lend_on_cuda(layout, accelerator, Stopwatch(accelerator.device), min(pages, PAGES), seed)

    return lend


def chosen_layouts(names: str | None) -> tuple[Layout, ...]:
    """By name, any case. Raises ProofError for one that is unknown."""
    if names is None:
        return LAYOUTS
    known = {layout.name.lower(): layout for layout in LAYOUTS}
    unknown = [name for name in names.split(",") if name.strip().lower() not in known]
    if unknown:
        raise ProofError(
            f"--layouts: there is no {unknown[0]!r}; there are: {', '.join(layout.name for layout in LAYOUTS)}"
        )
    return tuple(known[name.strip().lower()] for name in names.split(","))


def open_accelerator(ordinal: int) -> CudaAccelerator:
    """Raises ProofError with the reason."""
    if not torch.cuda.is_available():
        why = "torch is built without CUDA" if torch.version.cuda is None else "torch finds no CUDA device"
        raise ProofError(f"{why}: run this on a machine with an NVIDIA GPU, in a Python with torch and triton for CUDA")
    if ordinal not in range(torch.cuda.device_count()):
        raise ProofError(f"--device {ordinal}: there are {torch.cuda.device_count()}, counted from 0")
    torch.cuda.set_device(ordinal)
    return CudaAccelerator(torch.device("cuda", ordinal))


def facts(device: torch.device) -> dict[str, Any]:
    """What figures depend on."""
    import triton

    found: dict[str, Any] = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
    }
    if device.type == "cuda":
        about = torch.cuda.get_device_properties(device)
        found |= {
            "gpu": about.name,
            "gpus": torch.cuda.device_count(),
            "capability": f"{about.major}.{about.minor}",
            "memory_bytes": about.total_memory,
            "processors": about.multi_processor_count,
            "cuda": torch.version.cuda,
        }
    return found


class Proof:
    """Runs part after part, and says each finding as soon as it is there."""

    def __init__(
        self,
        accelerator: Accelerator,
        findings: Findings,
        layouts: Sequence[Layout],
        seed: int,
        cases: int,
        most_seconds: float,
        *,
        serves: bool = True,
        only_serving: bool = False,
        lends: Part | None = None,
        pages: int = speed.PAGES,
        ceiling_bytes: int = speed.CEILING_BYTES,
        clock: Callable[[], float] = time.monotonic,
        save: Callable[[], None] = lambda: None,
    ) -> None:
        """`save`: called after each part."""
        self._accelerator = accelerator
        self._findings = findings
        self._layouts = layouts
        self._seed = seed
        self._cases = cases
        self._serves = serves
        self._only_serving = only_serving
        self._lends = lends
        self._pages = pages
        self._ceiling_bytes = ceiling_bytes
        self._clock = clock
        self._save = save
        self._seconds = most_seconds
        self._end = clock() + most_seconds
        self._reserved = most_seconds * (1 - _BEFORE_SERVING) if serves and serving.can_serve() else 0.0
        self._best: speed.Ceilings | None = None
        self._watch = Stopwatch(accelerator.device)

    def run(self) -> None:
        for name, value in self._findings.facts.items():
            print(f"{name}: {value}")
        if not self._only_serving:
            self._all_but_serving()
        if self._serves:
            self._part("serving", self._serving, self._end)

    def _serving(self) -> Iterator[ProofCheck | ProofFigure]:
        free = 0
        if self._accelerator.device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(self._accelerator.device)
        yield from serving.serving(until=self._end, clock=self._clock, free_bytes=free)

    def _all_but_serving(self) -> None:
        checks = partial(right.checks, self._accelerator.device, self._seed, self._cases)
        self._part("right", lambda: checks(self._seconds * _RIGHT_SHARE, self._clock))
        self._part("ceilings", self._ceilings)
        first, *others = self._layouts
        self._layout(first)
        self._part(f"SGLang's kernels, {first.name}", partial(self._beside_sglang, first))
        if self._lends is not None:
            self._part("lending", partial(self._lending_of, self._lends, first))
        self._part("SSD to landing memory", lambda: direct.ssd_to_landing(first, self._accelerator))
        for layout in others:
            self._layout(layout)

    def _ceilings(self) -> Iterator[ProofFigure]:
        self._best = speed.ceilings(self._accelerator, self._watch, self._ceiling_bytes)
        yield from speed.ceiling_figures(self._best)

    def _layout(self, layout: Layout) -> None:
        self._part(f"kernels, {layout.name}", partial(self._kernels, layout))
        self._part(f"transfers, {layout.name}", partial(self._transfers, layout))
        self._part(f"streaming, {layout.name}", partial(self._streaming, layout))

    def _kernels(self, layout: Layout) -> Iterator[ProofFigure]:
        pages, _ = self._room(layout)
        yield from speed.kernels(layout, self._accelerator, self._ceiling(), self._watch, pages)

    def _beside_sglang(self, layout: Layout) -> Iterator[ProofCheck | ProofFigure]:
        yield from sglang_kernels.beside_sglang(layout, self._accelerator, self._watch, *self._room(layout))

    def _transfers(self, layout: Layout) -> Iterator[ProofFigure]:
        _, pages = self._room(layout)
        yield from speed.transfers(layout, self._accelerator, self._ceiling(), self._watch, pages)

    def _streaming(self, layout: Layout) -> Iterator[ProofFigure]:
        _, pages = self._room(layout)
        yield from hidden.hidden(layout, self._accelerator, self._watch, pages)
        yield from hidden.beside(layout, self._accelerator, self._watch, pages)

    def _lending_of(self, lends: Part, layout: Layout) -> Iterator[ProofCheck | ProofFigure]:
        yield from lends(layout, self._room(layout)[0])

    def _ceiling(self) -> speed.Ceilings:
        if self._best is None:
            raise LeftOutError("there are no ceilings to measure it against")
        return self._best

    def _room(self, layout: Layout) -> tuple[int, int]:
        """Pages to be moved: by kernels, and through page-locked memory. Raises LeftOutError where there is no room."""
        pages = self._pages
        if self._accelerator.device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(self._accelerator.device)
            # A pool of twice as many in both layouts, though not at once, and a slab.
            pages = min(pages, int(free * _DEVICE_SHARE) // (4 * layout.page_bytes))
        if pages < 2:
            raise LeftOutError("too little of the device's memory is free")
        return pages, max(1, min(pages, _HOST_BYTES // layout.page_bytes))

    def _part(
        self,
        name: str,
        make: Callable[[], Iterator[ProofCheck] | Iterator[ProofFigure] | Iterator[ProofCheck | ProofFigure]],
        begins_before: float | None = None,
    ) -> None:
        """What goes wrong in it is a finding of its own, and the next part begins all the same."""
        if begins_before is None:
            begins_before = self._end - self._reserved
        if self._clock() >= begins_before:
            self._leave_out(name, "no time was left")
            return
        try:
            for found in make():
                print(line(found), flush=True)
                if isinstance(found, ProofCheck):
                    self._findings.checks.append(found)
                else:
                    self._findings.figures.append(found)
        except ImportError as error:
            self._leave_out(name, f"{error.name} is not installed" if error.name else str(error).splitlines()[0])
        except LeftOutError as error:
            self._leave_out(name, str(error))
        except torch.OutOfMemoryError:
            self._leave_out(name, "the device's memory did not suffice")
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what this command is there to find
            traceback.print_exc()
            why = (str(error).splitlines() or [""])[0]
            found = ProofCheck(f"{name}: ran to its end", 1, f"{type(error).__name__}: {why}")
            print(line(found), flush=True)
            self._findings.checks.append(found)
        finally:
            self._tidy_up()
            self._save()

    def _tidy_up(self) -> None:
        gc.collect()
        if self._accelerator.device.type == "cuda":
            # A GPU whose kernel has failed refuses everything from then on; that has been said.
            with suppress(RuntimeError):
                torch.cuda.empty_cache()

    def _leave_out(self, name: str, why: str) -> None:
        self._findings.left_out[name] = why
        print(f"left out: {name}: {why}", flush=True)


def closing(findings: Findings) -> int:
    """Says what it came to; the exit code."""
    bounded = [figure for figure in findings.figures if figure.holds is not None]
    print(
        f"gpu-proof: {len(findings.checks) - len(findings.wrong)} of {len(findings.checks)} checks right; "
        f"{len(bounded) - len(findings.missed)} of {len(bounded)} bounds hold; {len(findings.left_out)} parts left out"
    )
    return FOUND if findings.wrong or findings.missed else 0
