"""One command, no network, a few minutes on one GPU: what is right, how fast it is, what is left out and why."""

from __future__ import annotations

import argparse
import gc
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

import numpy as np
import torch

from swift_tiers.kernels.copy_queue import Accelerator, CudaAccelerator
from swift_tiers.ops.gpu_proof import hidden, right, serving, sglang_kernels, speed
from swift_tiers.ops.gpu_proof.figures import Check, Figure, Findings, LeftOutError, line
from swift_tiers.ops.gpu_proof.layouts import LAYOUTS, Layout
from swift_tiers.ops.gpu_proof.options import ProofError
from swift_tiers.ops.gpu_proof.stopwatch import Stopwatch

#: Exit code: something is wrong, or a bound is missed.
FOUND = 3
#: Of the memory that is free.
_DEVICE_SHARE = 0.6
#: Page-locked at a time.
_HOST_BYTES = 4 * 2**30

#: Another part, of one layout and so many pages.
Part = Callable[[Layout, int], Iterator[Check | Figure]]


def prove(options: argparse.Namespace) -> int:
    """The command; its exit code. Raises ProofError."""
    layouts = chosen_layouts(options.layouts)
    accelerator = open_accelerator(options.device)
    seed = options.seed if options.seed is not None else int(np.random.SeedSequence().generate_state(1)[0])
    words = f"gpu-proof --seed {seed} --cases {options.cases}"
    if options.layouts:
        words += f" --layouts {options.layouts}"
    findings = Findings({"command": words, **facts(accelerator.device)})
    proof = Proof(
        accelerator, findings, layouts, seed, options.cases, options.seconds, lends=_lending(accelerator, seed)
    )
    try:
        proof.run()
    finally:
        if options.out is not None:
            findings.save(options.out)
            print(f"written: {options.out / 'results.json'} and results.svg", file=sys.stderr)
    return closing(findings)


def _lending(accelerator: Accelerator, seed: int) -> Part:
    def lend(layout: Layout, pages: int) -> Iterator[Check | Figure]:
        # Needs what only servers need.
        from swift_tiers.ops.gpu_proof.lending import PAGES, lend_on_cuda

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
        lends: Part | None = None,
        pages: int = speed.PAGES,
        ceiling_bytes: int = speed.CEILING_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._accelerator = accelerator
        self._findings = findings
        self._layouts = layouts
        self._seed = seed
        self._cases = cases
        self._serves = serves
        self._lends = lends
        self._pages = pages
        self._ceiling_bytes = ceiling_bytes
        self._clock = clock
        self._end = clock() + most_seconds
        self._watch = Stopwatch(accelerator.device)

    def run(self) -> None:
        for name, value in self._findings.facts.items():
            print(f"{name}: {value}")
        self._part("right", partial(right.checks, self._accelerator.device, self._seed, self._cases))
        best = speed.ceilings(self._accelerator, self._watch, self._ceiling_bytes)
        self._part("ceilings", partial(speed.ceiling_figures, best))
        for layout in self._layouts:
            on_device, on_host = self._room(layout)
            if on_device < 2:
                self._leave_out(f"kernels, {layout.name}", "too little of the device's memory is free")
                continue
            around = (layout, self._accelerator, best, self._watch)
            self._part(f"kernels, {layout.name}", partial(speed.kernels, *around, on_device))
            if layout is self._layouts[0]:
                beside = partial(sglang_kernels.beside_sglang, layout, self._accelerator, self._watch)
                self._part(f"SGLang's kernels, {layout.name}", partial(beside, on_device, on_host))
            self._part(f"transfers, {layout.name}", partial(speed.transfers, *around, on_host))
            self._part(
                f"streaming, {layout.name}",
                partial(hidden.hidden, layout, self._accelerator, self._watch, on_host),
            )
        if self._lends is not None:
            layout = self._layouts[0]
            self._part("lending", partial(self._lends, layout, self._room(layout)[0]))
        if self._serves:
            self._part("serving", serving.serving)

    def _room(self, layout: Layout) -> tuple[int, int]:
        """Pages to be moved: by kernels, and through page-locked memory."""
        pages = self._pages
        if self._accelerator.device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(self._accelerator.device)
            # A pool of twice as many in both layouts, though not at once, and a slab.
            pages = min(pages, int(free * _DEVICE_SHARE) // (4 * layout.page_bytes))
        return pages, max(1, min(pages, _HOST_BYTES // layout.page_bytes))

    def _part(
        self, name: str, make: Callable[[], Iterator[Check] | Iterator[Figure] | Iterator[Check | Figure]]
    ) -> None:
        if self._clock() >= self._end:
            self._leave_out(name, "no time was left")
            return
        try:
            for found in make():
                print(line(found), flush=True)
                if isinstance(found, Check):
                    self._findings.checks.append(found)
                else:
                    self._findings.figures.append(found)
        except ImportError as error:
            self._leave_out(name, f"{error.name} is not installed" if error.name else str(error).splitlines()[0])
        except LeftOutError as error:
            self._leave_out(name, str(error))
        except torch.OutOfMemoryError:
            self._leave_out(name, "the device's memory did not suffice")
        finally:
            gc.collect()
            if self._accelerator.device.type == "cuda":
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
