"""The public API as a type checker sees it: a user's program passes mypy --strict, and mistakes do not.

pyright checks the same program in `make interop`, because it comes from npm.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typed import user_program

HERE = Path(__file__).parent
#: Each line but the first is a mistake that a type checker must find.
MISTAKES = """\
import cordwood
log = cordwood.open("data", sync=5)
log.topic("orders").append("text")
log.topic("orders").read(start="0")
log.topic(b"orders")
log.topic("orders").scan(columns=7)
cordwood.no_such_name
"""


def checked(program: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    """Run mypy --strict on *program*, without our configuration; findings are about this program only."""
    return subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--config-file", os.devnull),
            *("--follow-imports", "silent", "--cache-dir", str(cache / "cache"), str(program)),
        ],
        cwd=cache,
        env={**os.environ, "MYPYPATH": str(HERE.parents[1] / "src")},
        capture_output=True,
        text=True,
    )


def test_a_users_program_passes_mypy_strict_and_mistakes_do_not(tmp_path: Path) -> None:
    sound = checked(HERE / "user_program.py", tmp_path)
    assert sound.returncode == 0, sound.stdout
    wrong = tmp_path / "wrong.py"
    wrong.write_text(MISTAKES)
    said = checked(wrong, tmp_path).stdout
    found = {int(line) for line in re.findall(r"^wrong\.py:(\d+): error", said, re.MULTILINE)}
    assert found == set(range(2, len(MISTAKES.splitlines()) + 1))


def test_the_program_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    user_program.main(str(tmp_path / "data"))
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("['orders'] 6 6 True <cordwood.Scan of 'orders', ")
    assert said[1:3] == ["[b'axe', b'saw', b'plane', b'nail', b'ab'] 17", "99 0 6"]
    assert said[4] == "there is no topic ordres; did you mean orders?"
