"""Ctrl-C at any moment: one line, and exit status 130."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import COMMAND, environment, run, said, started
from support.patience import SECONDS_MAX

LINE = "cordwood: interrupted\n"

#: Sends Ctrl-C to this process when it imports the module of number argv[1], counted from our first one.
_WHILE_IMPORTING = """
import os, signal, sys

left = int(sys.argv.pop(1))

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGINT)

import cordwood.cli
sys.meta_path.insert(0, Interrupting())
try:
    cordwood.cli.run()
finally:
    print(left, file=sys.stdout)
"""


def interrupted_import(number: int, data: Path) -> subprocess.CompletedProcess[str]:
    command = ["topic", "list", "--data", str(data)]
    return subprocess.run(
        [sys.executable, "-c", _WHILE_IMPORTING, str(number), *command],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=SECONDS_MAX,
    )


def test_while_modules_are_imported(tmp_path: Path) -> None:
    said("topic", "create", "orders", "--data", tmp_path)
    whole = interrupted_import(0, tmp_path)
    imports = -int(whole.stdout.splitlines()[-1])
    assert imports > 100
    numbers = sorted({1, 2, 3, *range(5, imports, imports // 12)})
    for number in numbers:
        done = interrupted_import(number, tmp_path)
        assert (done.returncode, done.stderr) == (130, LINE), (number, done)
    print(f"interrupted at {len(numbers)} of {imports} imports")


def test_while_a_follower_waits_for_records(tmp_path: Path) -> None:
    said("produce", "-t", "orders", "--data", tmp_path, stdin=b"axe\n")
    process = started("consume", "-t", "orders", "--data", tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline() == b"axe\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=SECONDS_MAX) == (b"", LINE.encode())
    assert process.returncode == 130


def test_a_group_has_committed_what_was_printed_when_ctrl_c_came(tmp_path: Path) -> None:
    from cordwood import Broker

    with Broker(tmp_path) as broker:
        where = ["--bootstrap", broker.bootstrap]
        said("produce", "-t", "orders", *where, stdin=b"axe\nsaw\n")
        process = started("consume", "-t", "orders", "-G", "shop", *where)
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == [b"axe\n", b"saw\n"]
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=SECONDS_MAX)
        assert (process.returncode, errors) == (130, LINE.encode())
        assert run("consume", "-t", "orders", "-G", "shop", "-e", *where).stdout == ""


def test_while_top_waits(tmp_path: Path) -> None:
    said("topic", "create", "orders", "--data", tmp_path)
    process = started("top", "--data", tmp_path, "--interval", "0.05", "--json")
    assert process.stdout is not None
    assert process.stdout.readline().startswith(b"[{")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=SECONDS_MAX)
    assert (process.returncode, errors) == (130, LINE.encode())


def test_while_processes_verify(tmp_path: Path) -> None:
    """A terminal sends Ctrl-C to the processes that read segments too; they say nothing."""
    data = tmp_path / "data"
    said("topic", "create", "orders", "--data", data, "--config", "segment.bytes=1048576")
    said("produce", "-t", "orders", "--data", data, stdin=b"a line of text\n" * 400_000)
    process = subprocess.Popen(
        [*COMMAND, "verify", str(data), "--jobs", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        start_new_session=True,
    )
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    if not children.parent.exists():
        process.communicate(timeout=SECONDS_MAX)
        pytest.skip("this system does not list the children of a process")
    while process.poll() is None and len(children.read_text().split()) < 2:
        pass
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=SECONDS_MAX)
    assert (process.returncode, errors) in ((130, LINE.encode()), (0, b"")), "0 if it was done first"
