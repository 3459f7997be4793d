"""The profile from its first step to its file."""

from __future__ import annotations

import argparse
import os
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from swift_tiers.radix_tiering.base.read_config import parse_config
from swift_tiers.radix_tiering.restore.cost import CostModel
from swift_tiers.radix_tiering.restore.fitting import compute_residuals, fit_compute, fit_source, source_residuals
from swift_tiers.radix_tiering.restore.profiles import (
    Profile,
    ProfileError,
    load_profile,
    profile_directory,
    profile_path,
    save_profile,
)

from ...base.arguments import check_between
from ...base.errors import USAGE, CommandError
from ...base.interruptible import terminable
from ...base.new_file import check_new_file
from ...base.progress import note, progress
from ..demo.servers import Server, free_ports
from .measure import Measurement
from .report import show
from .session import ProfileSession, ServedModel
from .setting import Setting, prepare

#: Seconds that a small model's server takes to start: only the bar's length depends on it.
USUAL_START = 40.0


def run_profile(options: argparse.Namespace) -> int:
    """See the package; `options` are its arguments. Returns the exit code. Raises CommandError, SwiftTiersError."""
    from ...base.terminal import Terminal

    check_between("--seconds", options.seconds, 1, 3600)
    check_out(options.out)
    if options.out is None and profile_directory() is None:
        raise CommandError("--out: this user has no home directory to keep the profile in; name a file", USAGE)
    with terminable(), prepare(options.model_path, options.swift_tiers_config, options.server_arguments) as setting:
        profile, left_out = _measure(setting, options)
    path = options.out or profile_path(profile.model, profile.hardware)
    save_profile(profile, path)
    show(profile, {**setting.left_out, **left_out}, Terminal(markup=True))
    print(f"saved: {path}")
    return 0


def check_out(path: Path | None) -> None:
    """Before anything is measured: that a profile can be written there. One that is there is made anew, anything else
    left alone. Raises CommandError (usage)."""
    if path is None or not os.path.lexists(path):
        check_new_file("--out", path)
        return
    try:
        load_profile(path)
    except ProfileError:
        raise CommandError(f"--out: {path} is there already, and no profile; give another name", USAGE) from None


def _measure(setting: Setting, options: argparse.Namespace) -> tuple[Profile, dict[str, str]]:
    """The profile, and what it lacks and why."""
    (port,) = free_ports(1)
    with _log_directory() as logs, Server("to profile", setting.arguments, port, logs / "server.log") as server:
        server.start()
        started = time.monotonic()
        with progress(f"starting a server of {setting.name}", total=USUAL_START, unit=" s") as bar:
            server.wait_ready(options.start_timeout, lambda: bar.update(time.monotonic() - started))
        bus = parse_config({"bus": setting.config["bus"]}).bus
        with ProfileSession(server, bus) as session, progress("measuring", total=options.seconds, unit=" s") as bar:
            served = session.served()
            measurement = Measurement(
                session,
                longest=setting.longest,
                chunk=setting.chunk,
                sources=setting.sources,
                seed=random.randrange(2**32),
            )
            measurement.run(options.seconds, bar.update)
    return make_profile(setting.name, served, setting.chunk, measurement), measurement.left_out


def make_profile(name: str, served: ServedModel, chunk: int, measurement: Measurement) -> Profile:
    """What the samples come to. Raises CommandError where there are none of computing."""
    if not measurement.compute:
        raise CommandError("profile: no forward could be timed: every prompt found its prefix below the device")
    compute = fit_compute(measurement.compute)
    loads = {source: samples for source, samples in measurement.loads.items() if samples}
    sources = {source: fit_source(samples) for source, samples in loads.items()}
    return Profile(
        model=served.model,
        hardware=served.hardware,
        name=name,
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        versions={package: version(package) for package in ("swift-tiers", "sglang", "torch")},
        costs=CostModel(compute=compute, sources=sources),
        chunk_tokens=chunk,
        compute_samples=tuple(measurement.compute),
        source_samples={source: tuple(samples) for source, samples in loads.items()},
        residuals={
            "compute": compute_residuals(compute, measurement.compute),
            **{source: source_residuals(sources[source], samples) for source, samples in loads.items()},
        },
    )


@contextmanager
def _log_directory() -> Iterator[Path]:
    """Where the server's log goes: kept after a failure, whose message names it."""
    logs = Path(tempfile.mkdtemp(prefix="swift-tiers-profile-"))
    try:
        yield logs
    except CommandError:
        note(f"the server's log is kept in {logs}")
        raise
    except BaseException:
        shutil.rmtree(logs, ignore_errors=True)
        raise
    shutil.rmtree(logs, ignore_errors=True)
