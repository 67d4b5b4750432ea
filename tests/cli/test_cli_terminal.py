"""On a terminal: drawn tables, colours unless they are not wanted, and progress on long work."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
from pathlib import Path

import pytest
from support.commands import COMMAND, environment, said
from support.patience import SECONDS_MAX

ESCAPE = "\x1b["


def on_terminal(*arguments: object, both: bool = True, stdin: Path | None = None, **more: str) -> str:
    """Run a command whose standard error, and output if *both*, is a terminal; return what that shows."""
    try:
        ours, theirs = pty.openpty()
    except OSError as error:
        pytest.skip(f"this machine gives no terminals: {error}")
    kept = {name: value for name, value in environment().items() if name not in ("NO_COLOR", "CI")}
    with contextlib.ExitStack() as stack:
        source = subprocess.DEVNULL if stdin is None else stack.enter_context(open(stdin, "rb"))
        process = subprocess.Popen(
            [*COMMAND, *map(str, arguments)],
            stdin=source,
            stdout=theirs if both else subprocess.DEVNULL,
            stderr=theirs,
            env={**kept, "TERM": "xterm-256color", "COLUMNS": "200", **more},
        )
        os.close(theirs)
        shown = b""
        # A terminal whose last user is gone is an error to read from, on Linux.
        with contextlib.suppress(OSError):
            while piece := os.read(ours, 1 << 16):
                shown += piece
        os.close(ours)
        assert process.wait(SECONDS_MAX) in (0, 4)
    return shown.decode()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    said("topic", "create", "orders", "--data", tmp_path / "data")
    said("produce", "-t", "orders", "--data", tmp_path / "data", stdin=b"tea\n")
    return tmp_path / "data"


def test_tables_are_drawn_on_a_terminal_and_plain_elsewhere(data: Path) -> None:
    shown = on_terminal("topic", "list", "--data", data)
    assert "┃" in shown
    assert "orders" in shown
    plain = said("topic", "list", "--data", data)
    assert plain == "topic   partitions  offsets\norders           1        1\n"


def test_no_color_is_honoured(data: Path) -> None:
    (segment,) = data.glob("topics/orders/0/segments/*.log")
    content = bytearray(segment.read_bytes())
    content[-1] ^= 1
    segment.write_bytes(content)
    # Only what colours: bold and the like are no colours.
    assert f"{ESCAPE}1;31m" in on_terminal("verify", data)
    assert "31m" not in on_terminal("verify", data, NO_COLOR="1")


def test_progress_is_shown_on_a_terminal_only(data: Path, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_bytes(b"a line of text\n" * 1000)
    shown = on_terminal("produce", "-t", "orders", "--data", data, both=False, stdin=lines)
    assert "producing" in shown
    assert "1,000 records appended to orders" in shown
    assert "verifying" in on_terminal("verify", data, both=False)
    # A program that reads the output gets nothing else, whatever standard error is.
    assert on_terminal("verify", data, "--json", both=False) == ""
