"""`swift-tiers` as a user calls it, within the test's process."""

from __future__ import annotations

import pytest

from swift_tiers.ops import cli


def run_command(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    capsys.readouterr()
    try:
        code = cli.main(list(words))
    except SystemExit as error:
        code = int(error.code or 0)
    shown = capsys.readouterr()
    return code, shown.out, shown.err
