"""Ctrl-C in a command that runs Spark."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from support.commands import COMMAND, environment, said
from support.patience import SECONDS_MAX


def test_ctrl_c_while_spark_starts_is_one_line_and_leaves_no_jvm(tmp_path: Path) -> None:
    """A terminal sends it to every process of the command. The JVM would outlive a start cut in half."""
    said("produce", "-t", "orders", "--data", tmp_path, stdin=b"axe\n")
    process = subprocess.Popen(
        [*COMMAND, "pipeline", "stats", "--data", str(tmp_path), "--master", "local[1]"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        start_new_session=True,
    )
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    if not children.parent.exists():
        process.communicate(timeout=SECONDS_MAX)
        pytest.skip("this system does not list the children of a process")
    while process.poll() is None and not children.read_text().split():
        pass
    os.killpg(process.pid, signal.SIGINT)
    # The JVM has the same standard output, so this ends when the JVM has ended too.
    out, errors = process.communicate(timeout=SECONDS_MAX)
    assert (process.returncode, out, errors) == (130, b"", b"cordwood: interrupted\n")
