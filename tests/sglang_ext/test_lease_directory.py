"""Where a donor listens is made, and tried, before its model is loaded."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from swift_tiers.radix_tiering.base.config import PeerConfig, TiersConfig
from swift_tiers.radix_tiering.base.errors import ConfigError
from swift_tiers.sglang_ext.build.lease_directory import check_lease_directory, lease_directory


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


def test_who_does_not_lend_needs_none(tmp_path: Path) -> None:
    check_lease_directory(donor(tmp_path / "leases", donate=False))
    assert not (tmp_path / "leases").exists()
