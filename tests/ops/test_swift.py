"""The checkout's own command `./swift`: it runs where it was called."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "swift"
#: `./swift` itself, with an environment that is prepared: this one.
RUN = """
import importlib.machinery, importlib.util, pathlib, sys
loader = importlib.machinery.SourceFileLoader("swift", sys.argv[1])
swift = importlib.util.module_from_spec(importlib.util.spec_from_loader("swift", loader))
sys.dont_write_bytecode = True
loader.exec_module(swift)
swift.setup, swift.PYTHON = lambda: None, pathlib.Path(sys.executable)
del sys.argv[1]
swift.main()
"""


def swift(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-c", RUN, str(SCRIPT), *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


def test_names_of_files_are_those_of_the_directory_it_was_called_in(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('[host]\nsize = "a lot"\n')
    result = swift(tmp_path, "config", "--check", "mine.toml")
    assert result.returncode == 2
    assert "host.size" in result.stderr, result.stderr
    assert swift(tmp_path, "python", "-c", "import os; print(os.getcwd())").stdout.strip() == str(tmp_path)


def test_no_module_is_taken_from_the_directory_it_was_called_in(tmp_path: Path) -> None:
    (tmp_path / "argparse.py").write_text("raise SystemExit('somebody else')\n")
    result = swift(tmp_path, "config", "--defaults")
    assert (result.returncode, result.stderr) == (0, "")


def test_the_environment_of_another_checkout_is_left_to_it(tmp_path: Path) -> None:
    """It would run this one's code from then on."""
    for name in ("theirs", "mine"):
        (tmp_path / name).mkdir()
        shutil.copy(SCRIPT, tmp_path / name / "swift")
    (tmp_path / "theirs" / ".venv").mkdir()
    (tmp_path / "mine" / ".venv").symlink_to("../theirs/.venv")
    result = subprocess.run([sys.executable, tmp_path / "mine" / "swift", "setup"], capture_output=True, text=True)
    assert result.returncode == 1
    assert result.stderr.startswith(f"swift: .venv is a link to the environment of the checkout {tmp_path / 'theirs'}")
    assert result.stderr.count("\n") == 1
    assert not list((tmp_path / "theirs" / ".venv").iterdir())
