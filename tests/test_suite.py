"""What the suite promises of itself: a test that hangs costs itself alone, and a run says what it leaves."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from support import patience
from support.interrupting import interrupted_after
from support.nested import TESTS, run_tests
from support.patience import SECONDS_MAX, Limit, until

# --- a test that hangs --------------------------------------------------------------------------------


def test_a_test_that_hangs_fails_alone_and_shared_fixtures_are_made_again(tmp_path: Path) -> None:
    """In its call, in its setup or in its teardown; the next test finds nothing that was broken off."""
    said, counts = run_tests(
        tmp_path,
        """
        import threading
        import pytest

        made = []

        @pytest.fixture(scope="session")
        def server():
            made.append("broken" if not made else "fine")
            yield made[-1]
            made.append("ended")

        @pytest.fixture(scope="module")
        def client(server):
            return server

        @pytest.fixture
        def hangs():
            threading.Event().wait()

        @pytest.fixture
        def hangs_at_the_end():
            yield
            threading.Event().wait()

        def test_call(client):
            assert client == "broken"
            threading.Event().wait()

        def test_next(client):
            assert (client, made) == ("fine", ["broken", "ended", "fine"])

        def test_setup(client, hangs):
            pass

        def test_after_setup(client):
            assert made[-2:] == ["ended", "fine"]

        def test_teardown(client, hangs_at_the_end):
            pass

        def test_after_teardown(client):
            assert client == "fine"
        """,
        "-p",
        "no:xdist",
        "--timeout=0.2",
    )
    assert counts == {"failed": 1, "passed": 4, "errors": 2, "status": 1}, said
    for phase in ("setup", "call", "teardown"):
        assert f"Failed: the {phase} passed its limit: 0.2 s on a machine" in said


def test_a_test_that_hangs_outside_of_python_ends_its_process_and_costs_itself_alone(tmp_path: Path) -> None:
    """A call that never returns to the interpreter sees no signal."""
    (tmp_path / "conftest.py").write_text("import support.timeouts\nsupport.timeouts.GRACE_SECONDS = 0.2\n")
    said, counts = run_tests(
        tmp_path,
        """
        import ctypes
        import signal

        def test_before():
            pass

        def test_hangs():
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
            ctypes.CDLL(None).pause()

        def test_after():
            pass
        """,
        "-n1",
        "--timeout=0.2",
    )
    assert counts == {"failed": 1, "passed": 2, "status": 1}, said
    assert "worker 'gw0' crashed while running 'test_given.py::test_hangs'" in said
    assert re.search(r'File ".*test_given.py", line \d+ in test_hangs', said), said


def test_a_limit_lasts_longer_on_a_machine_that_is_found_to_be_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    found = iter([4.0, 2.0, 8.0, 1.0])
    monkeypatch.setattr(patience, "slowdown", lambda: next(found))
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    limit = Limit(10)
    seen = {}
    for now in (5.0, 10.0, 39.0, 40.0, 79.0, 80.0):
        seen[now] = limit.left()
    # The machine is measured at 10 s, 40 s and 80 s; the slowest counts.
    assert seen == {5.0: 5.0, 10.0: 30.0, 39.0: 1.0, 40.0: 0.0, 79.0: 1.0, 80.0: 0.0}
    assert str(limit) == "10 s on a machine 8.0 times slower than a quiet one"


def test_the_measured_machine_is_never_faster_than_a_quiet_one_nor_endlessly_slow() -> None:
    assert 1.0 <= patience.slowdown() <= patience.SLOWDOWN_MAX


def test_waiting_names_what_did_not_come() -> None:
    with pytest.raises(AssertionError, match=r"a bus: not within 0.01 s on a machine \d+\.\d times slower"):
        until(lambda: False, "a bus", seconds=0.01)
    assert until(lambda: True, "nothing") < SECONDS_MAX


def test_an_interrupt_goes_to_what_still_runs_and_to_nothing_else() -> None:
    """The tests around it have the signal's usual handler, which would end the whole run."""
    usual = signal.getsignal(signal.SIGINT)
    ended, interrupted = threading.Event(), threading.Event()
    with interrupted_after(lambda: ended.wait(SECONDS_MAX)):
        ended.set()
    with interrupted_after(lambda: None):
        signal.signal(signal.SIGINT, lambda number, frame: interrupted.set())
        assert interrupted.wait(SECONDS_MAX)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    with pytest.raises(ZeroDivisionError), interrupted_after(lambda: 1 / 0):
        pass
    assert signal.getsignal(signal.SIGINT) is usual


# --- what is left behind ------------------------------------------------------------------------------


@pytest.mark.parametrize("processes", [("-p", "no:xdist"), ("-n1",)], ids=["here", "spread"])
def test_what_a_run_leaves_behind_is_said_ended_and_an_error_if_asked_for(
    tmp_path: Path, processes: tuple[str, ...]
) -> None:
    (tmp_path / "conftest.py").write_text(
        "import os\nimport support.leftovers\nsupport.leftovers.ENDING_SECONDS = 0.1\n"
        "os.environ['CORDWOOD_LEFTOVERS'] = 'fail'\n"
    )
    said, counts = run_tests(
        tmp_path,
        """
        import subprocess
        import tempfile
        import threading

        def test_leaves_things_behind():
            # Its parent ends first: who asks for children does not find it.
            subprocess.run(["sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo $! > pid"])
            threading.Thread(target=threading.Event().wait, name="forgotten", daemon=True).start()
            open("stray", "w").close()
            tempfile.mkdtemp()
        """,
        *processes,
    )
    assert counts == {"passed": 1, "status": 1}, said
    pid = int((tmp_path / "pid").read_text())
    until(
        lambda: not Path(f"/proc/{pid}/cmdline").exists() or not Path(f"/proc/{pid}/cmdline").read_text(),
        "end",
    )
    left = said.partition("what was left behind")[2]
    assert f"process {pid}: sleep 1000, started by test_given.py::test_leaves_things_behind (call)" in left
    assert "thread forgotten of process " in left
    assert "file stray\n" in left
    assert "temporary tmp…: 1, removed" in left


def test_a_run_that_leaves_nothing_behind_says_nothing_of_it(tmp_path: Path) -> None:
    said, counts = run_tests(tmp_path, "def test_tidy(tmp_path): pass", "-n1")
    assert counts == {"passed": 1, "status": 0}, said
    assert "left behind" not in said


# --- how it is started --------------------------------------------------------------------------------


def test_the_whole_suite_is_collected_without_xdist() -> None:
    """For one file after the other, as one debugs them."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:xdist",
            "-q",
            "--collect-only",
            str(TESTS / "config/test_config.py"),
        ],
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "tests collected" in done.stdout
