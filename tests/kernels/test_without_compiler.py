"""Where no compiler was there, the plain kernels run; people are told once, by the commands that explain."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from cordwood.kernels import NOTICE

_PLAIN = "import sys; sys.modules['cordwood.kernels._compact'] = None; "
_COMMAND = "from cordwood.cli import main; main(sys.argv[1:])"


def ran(code: str, directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run *code* in a process that has no compiled kernels and makes every warning an error."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", _PLAIN + code, *arguments],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_command_works_on_the_plain_kernels_without_a_word(tmp_path: Path) -> None:
    code = "from cordwood import kernels; assert not kernels.COMPILED; " + _COMMAND
    done = ran(code, tmp_path, "topic", "create", "orders")
    assert (done.stdout, done.stderr) == ("created topic orders with 1 partition\n", "")


def test_doctor_says_once_what_the_plain_kernels_cost(tmp_path: Path) -> None:
    done = ran(_COMMAND, tmp_path, "doctor")
    assert done.stdout.count(NOTICE) == 1
    assert done.stderr == ""


def test_setup_says_which_kernels_run(tmp_path: Path) -> None:
    code = "import runpy; runpy.run_module('cordwood.kernels', run_name='__main__')"
    assert ran(code, tmp_path).stdout == f"NOTICE: {NOTICE}\n"
