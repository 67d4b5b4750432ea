"""Runs of pytest within a test, for what the suite promises of itself."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

TESTS = Path(__file__).parents[1]
PLUGINS = ("support.timeouts", "support.leftovers")


def run_tests(directory: Path, text: str, *options: str) -> tuple[str, dict[str, int]]:
    """Run tests in a process of their own, with these limits and checks; return what it says, and counts."""
    (directory / "test_given.py").write_text(textwrap.dedent(text))
    (directory / "pytest.ini").write_text("[pytest]\n")
    plugins = [part for name in PLUGINS for part in ("-p", name)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *plugins, *options, "test_given.py"],
        cwd=directory,
        env=os.environ | {"PYTHONPATH": str(TESTS), "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
    )
    counts = {word: int(count) for count, word in re.findall(r"(\d+) (passed|failed|errors?)", done.stdout)}
    return done.stdout + done.stderr, {**counts, "status": done.returncode}
