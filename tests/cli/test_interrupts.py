"""Ctrl-C at any moment: one line, and exit status 130."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support.commands import COMMAND, environment, run, said, started
from support.patience import SECONDS_MAX, until

from cordwood.cli.interrupting import noting_interrupts
from cordwood.testing import KafkaBroker

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


@pytest.mark.parametrize("options", [(), ("--follow",)], ids=["once", "following"])
def test_while_a_mirror_waits_for_a_source_that_does_not_answer(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    """It ends at once, and leaves no directory: nothing was copied."""
    data = tmp_path / "data"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        source = f"127.0.0.1:{silent.getsockname()[1]}"
        process = started("mirror", "--from", source, "--data", data, *options)
        connection, _ = silent.accept()
        with connection:
            # Its first request is here, so it waits for the answer.
            assert connection.recv(4)
            process.send_signal(signal.SIGINT)
            output = process.communicate(timeout=SECONDS_MAX)
    assert (process.returncode, *output) == (130, b"", LINE.encode())
    assert not data.exists()


def test_while_nobody_is_there_to_mirror_from(tmp_path: Path) -> None:
    """Refused connections are tried again until the time-out, and Ctrl-C is answered between them, too."""
    data = tmp_path / "data"
    with socket.create_server(("127.0.0.1", 0)) as closing:
        source = f"127.0.0.1:{closing.getsockname()[1]}"
        process = started("mirror", "--from", source, "--data", data)
        connection, _ = closing.accept()
    connection.close()
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=SECONDS_MAX) == (b"", LINE.encode())
    assert process.returncode == 130
    assert not data.exists()


def test_while_a_mirror_that_follows_waits_for_a_source_that_hangs(tmp_path: Path) -> None:
    """Ctrl-C is how it is to end, so it says 0; it does not wait for the source for as long as it may."""
    with KafkaBroker() as broker:
        broker.create_topic("orders")
        process = started(
            "mirror", "--from", broker.bootstrap, "--data", tmp_path, "--follow", "--timeout", 600
        )
        catalogue = tmp_path / "meta" / "catalogue.log"
        until(lambda: catalogue.exists() and b"orders" in catalogue.read_bytes(), "it has the topic")
        broker.pause()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=SECONDS_MAX)
        assert (process.returncode, errors) == (0, b"")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_work_that_does_not_end_by_itself_is_interrupted(number: int) -> None:
    before = signal.getsignal(number)
    seen = []

    def work() -> None:
        with noting_interrupts(grace_seconds=0.01) as stopped:
            seen.append(stopped())
            os.kill(os.getpid(), number)
            seen.append(stopped())
            threading.Event().wait(SECONDS_MAX)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert seen == [False, True]
    assert signal.getsignal(number) is before


def test_work_that_ends_by_itself_is_not_interrupted() -> None:
    with noting_interrupts(grace_seconds=SECONDS_MAX) as stopped:
        os.kill(os.getpid(), signal.SIGINT)
        while not stopped():
            pass
    assert "interrupts" not in [each.name for each in threading.enumerate()]
