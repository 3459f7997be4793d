"""Where a donor listens is made, and tried, before its model is loaded."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from swift_tiers.radix_tiering.base.config import BusConfig, PeerConfig, TiersConfig
from swift_tiers.radix_tiering.base.errors import ConfigError
from swift_tiers.radix_tiering.bus.redis import connection
from swift_tiers.sglang_ext.build import start_checks
from swift_tiers.sglang_ext.build.assembly import Rank
from swift_tiers.sglang_ext.build.lease_directory import check_lease_directory, check_lease_name, lease_directory


def donor(directory: Path | None, donate: bool = True) -> TiersConfig:
    return TiersConfig(peer=PeerConfig(donate=donate, directory=None if directory is None else str(directory)))


def test_it_is_made_for_this_user_alone(tmp_path: Path) -> None:
    for _ in range(2):
        check_lease_directory(donor(tmp_path / "leases"))
        assert stat.S_IMODE((tmp_path / "leases").stat().st_mode) == 0o700
    assert not list((tmp_path / "leases").iterdir())


def test_without_one_it_is_that_of_the_bus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert lease_directory(donor(None)) == tmp_path / "swift-tiers"
    check_lease_directory(donor(None))
    assert (tmp_path / "swift-tiers").is_dir()


def test_one_that_cannot_be_made_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, mode: int) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(ConfigError, match=r"^peer.directory: .*/leases cannot be used \(Read-only file system\); name"):
        check_lease_directory(donor(tmp_path / "leases"))


def test_one_that_cannot_be_written_to_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It came with the image of a container."""
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(ConfigError, match=r"^peer.directory: .*/leases cannot be written to; name one that can be"):
        check_lease_directory(donor(tmp_path / "leases"))


def test_a_check_makes_none(tmp_path: Path) -> None:
    check_lease_directory(donor(tmp_path / "leases"), make=False)
    assert not (tmp_path / "leases").exists()
    (tmp_path / "leases").mkdir(mode=0o755)
    with pytest.raises(ConfigError, match=r"^peer.directory: .*/leases is open to others"):
        check_lease_directory(donor(tmp_path / "leases"), make=False)
    with pytest.raises(ConfigError, match=r"^peer.directory: .*/none/leases cannot be made by this user; name one"):
        check_lease_directory(donor(tmp_path / "none" / "leases"), make=False)


def test_a_name_that_is_too_long_for_a_socket_there_is_refused() -> None:
    """A socket's path is 107 bytes long at most."""
    longest = "s" * (107 - len("/run/leases/.lease"))
    check_lease_name(donor(Path("/run/leases")), longest)
    with pytest.raises(ConfigError, match=r"^peer.directory: /run/leases/s+.lease is too long .*; set bus.server to a"):
        check_lease_name(donor(Path("/run/leases")), f"{longest}s")
    check_lease_name(donor(Path("/run/leases"), donate=False), f"{longest}s")


def test_who_does_not_lend_needs_none(tmp_path: Path) -> None:
    check_lease_directory(donor(tmp_path / "leases", donate=False))
    assert not (tmp_path / "leases").exists()


def test_a_runtime_directory_that_is_not_used_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A volume of a pod is root's, and servers in other pods look for the bus there."""
    monkeypatch.setattr(connection, "check", lambda bus: None)
    volume = tmp_path / "volume"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(volume))

    def told(bus: BusConfig) -> list[str]:
        caplog.clear()
        start_checks.check_start(TiersConfig(bus=bus), server="alpha", last=Rank(0, 1, 0, 1), make=False)
        return [record.getMessage() for record in caplog.records if "XDG_RUNTIME_DIR" in record.getMessage()]

    (line,) = told(BusConfig())
    assert str(volume) in line
    assert "set bus.directory" in line
    assert told(BusConfig(directory=str(tmp_path / "bus"))) == told(BusConfig(enabled=False)) == []
    volume.mkdir()
    assert told(BusConfig()) == []


@pytest.mark.parametrize(("machines", "url", "lines"), [(1, None, 0), (2, None, 1), (2, "redis://10.0.0.1", 0)])
def test_a_bus_on_each_machine_is_told_of(
    machines: int, url: str | None, lines: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connection, "check", lambda bus: None)
    config, last = TiersConfig(bus=BusConfig(url=url)), Rank(1, 2, 0, 1)
    start_checks.check_start(config, server="alpha", last=last, machines=machines, make=False)
    assert len([record for record in caplog.records if "bus.url" in record.getMessage()]) == lines
