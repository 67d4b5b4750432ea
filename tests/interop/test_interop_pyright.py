"""A user's program under pyright, which is a package of npm."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from interop.toolbox import HERE, ROOT, fetch, kept, program

pytestmark = pytest.mark.interop
PROGRAM = ROOT / "tests" / "typed" / "user_program.py"
VERSION = "1.1.414"


def test_a_program_that_uses_the_library_passes_pyright_in_strict_mode(tmp_path: Path) -> None:
    npm = program("npm")
    home = kept("pyright", [HERE / "test_interop_pyright.py"], lambda place: _install(npm, place))
    shutil.copy(PROGRAM, tmp_path)
    settings = {"extraPaths": [str(ROOT / "src")], "typeCheckingMode": "strict"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    pyright = home / "node_modules" / ".bin" / "pyright"
    said = subprocess.run(
        [pyright, "-p", tmp_path, "--pythonpath", sys.executable, "--outputjson"],
        capture_output=True,
        text=True,
        check=False,
    )
    report = json.loads(said.stdout)
    found = [(each["range"]["start"]["line"] + 1, each["message"]) for each in report["generalDiagnostics"]]
    assert report["summary"]["filesAnalyzed"] == 1
    assert [each for each in found if "Stub file not found" not in each[1]] == []


def _install(npm: str, place: Path) -> None:
    fetch([npm, "install", "--no-audit", "--no-fund", f"pyright@{VERSION}"], place)
