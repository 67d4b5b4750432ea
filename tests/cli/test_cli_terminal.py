"""On a terminal: drawn tables, colours unless they are not wanted, and progress on long work."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import re
import subprocess
from pathlib import Path

import pytest
from support.commands import COMMAND, environment, said
from support.patience import SECONDS_MAX

from cordwood import Broker
from cordwood.cli.output import progress_bar

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
    assert "backing up" in on_terminal("backup", tmp_path / "saved", "--data", data, both=False)
    assert "restoring" in on_terminal("restore", tmp_path / "saved", "--data", tmp_path / "again", both=False)
    assert "reindexing" in on_terminal("reindex", "--data", data, both=False)
    where = ["-t", "orders", "--data", data]
    assert "exporting" in on_terminal("export", tmp_path / "out", *where, "--to", "rustlog", both=False)
    copied = ["-t", "copies", "--data", data]
    assert "importing" in on_terminal("import", tmp_path / "out", *copied, "--from", "rustlog", both=False)
    assert "maintaining" in on_terminal("maintain", "--data", data, "--force", both=False)
    assert "signing" in on_terminal("checkpoint", "create", "--data", data, both=False)
    # A program that reads the output gets nothing else, whatever standard error is.
    assert on_terminal("verify", data, "--json", both=False) == ""


def test_export_and_mirror_say_how_much_there_is_to_do(data: Path, tmp_path: Path) -> None:
    where = ["-t", "orders", "--data", data]
    shown = on_terminal("export", tmp_path / "out", *where, "--to", "rustlog", both=False)
    size = sum(segment.stat().st_size for segment in data.glob("topics/orders/0/segments/*.log"))
    assert f"{size}/{size} bytes" in shown
    with Broker(data) as broker:
        copy = ["--from", broker.bootstrap, "--data", tmp_path / "copy"]
        assert "1/1 offsets" in on_terminal("mirror", *copy, both=False)
        # Everything is there, so there is nothing to show but that it works.
        again = on_terminal("mirror", *copy, "--verify", both=False)
    assert "mirroring" in again
    for text in (shown, again):
        assert "?" not in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def test_a_total_that_nobody_knows_is_not_shown_as_a_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes of a topic in the shared log, for one."""
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr("sys.stderr", screen)
    with progress_bar("exporting", 0) as show:
        show(2048)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    assert "exporting" in text
    assert "2.0 kB" in text
    assert "?" not in text


def test_produce_on_a_terminal_asks_for_lines_until_ctrl_d(data: Path) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "produce", "-t", "orders", "--data", str(data)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment({"TERM": "xterm-256color"}),
    )
    os.close(theirs)
    shown = b""

    def until(text: bytes) -> None:
        nonlocal shown
        while not shown.endswith(text):
            shown += os.read(ours, 1 << 16)

    until(b"Type the records of orders, one in a line. Ctrl-D ends.\r\n> ")
    os.write(ours, b"milk\n")
    until(b"milk\r\n> ")
    # Ctrl-D within a line hands over what there is of it, and the line goes on.
    os.write(ours, b"cof\x04")
    until(b"cof")
    os.write(ours, b"fee\n")
    until(b"fee\r\n> ")
    os.write(ours, b"\x04")
    with contextlib.suppress(OSError):
        while piece := os.read(ours, 1 << 16):
            shown += piece
    os.close(ours)
    assert process.wait(SECONDS_MAX) == 0
    assert shown.endswith(b"> \r\n2 records appended to orders\r\n")
    assert b"producing" not in shown
    assert said("consume", "-t", "orders", "-e", "--data", data) == "tea\nmilk\ncoffee\n"


@pytest.mark.parametrize("columns", [40, 60, 80])
def test_top_fits_a_narrow_terminal(data: Path, columns: int) -> None:
    """The less important columns are left out; no number and no heading is cut in two."""
    once = ["top", "--once", "--interval", "0.05", "--data", data]
    shown = on_terminal(*once, COLUMNS=str(columns))
    table = [line for line in re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", shown).splitlines() if line[:1] in "┏┃┡│└"]
    assert len(table) == 5, "a line for the headings, one for the topic, and three that are drawn"
    assert len({len(line) for line in table}) == 1
    assert len(table[0]) <= columns
    headings = re.findall(r"[a-z/]+", table[1])
    assert headings[0] == "topic"
    assert {40: "records/s", 60: "size", 80: "partitions"}[columns] in headings
    assert table[3].split("│")[1].strip() == "orders"
    assert len(table[3].split("│")) == len(headings) + 2
