"""What a run of the tests leaves behind is said at its end: processes, threads and files.

Processes that outlive the run are ended. With ``CORDWOOD_LEFTOVERS=fail`` they, and threads, make it fail.
Temporary files, those of every Spark too, are in a directory of the run, which is removed with them.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import tempfile
import threading
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from support.patience import Limit

#: Marks every process that descends from a run, also where its parent is gone, by its environment.
MARK = "CORDWOOD_TEST_RUN"
#: The seconds on a quiet machine that processes and threads that are ending have for it.
ENDING_SECONDS = 10.0
#: Threads of what runs the tests, not of a test.
_OF_THE_RUNNER = ("MainThread", "pytest", "execnet", "Dummy-")
#: What differs between the names of temporary files of one kind.
_DRAWN = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|\d{6,}|(?<=^tmp).+")

_run_key = pytest.StashKey["_Run"]()


class _Run:
    """The process that began the run, with what it found before."""

    def __init__(self, config: pytest.Config) -> None:
        self.mark = uuid4().hex
        self.before = dict(os.environ)
        self.root = config.rootpath
        self.files = _files_in(self.root)
        self.threads: list[str] = []
        self.said: list[str] = []
        usual = tempfile.gettempdir()
        # Among the directories that pytest gives to tests, of which it keeps those of the last runs: one that
        # was killed leaves no more than they do.
        self.scratch: Path = config._tmp_path_factory.mktemp("scratch", numbered=False)  # type: ignore[attr-defined]
        os.environ[MARK] = self.mark
        # A pytest within a test has its directories where they usually are.
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", usual)
        os.environ["TMPDIR"] = os.environ["SPARK_LOCAL_DIRS"] = str(self.scratch)
        java = f"-Djava.io.tmpdir={self.scratch} -XX:-UsePerfData"
        os.environ["SPARK_SUBMIT_OPTS"] = f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} {java}".strip()
        tempfile.tempdir = None

    def end(self) -> bool:
        """End and remove what is left, and note it; return whether it is an error."""
        processes = _processes_of(self.mark)
        limit = Limit(ENDING_SECONDS)
        while processes and not limit.passed():
            processes = _processes_of(self.mark)
        for pid, what in processes.items():
            self.said.append(f"process {pid}: {what}")
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.said += self.threads
        failed = bool(self.said)
        self.said += [f"file {name}" for name in sorted(_files_in(self.root) - self.files)]
        # Where many runs share a machine, pytest may have removed the directories of this one by now.
        names = os.listdir(self.scratch) if self.scratch.is_dir() else []
        kinds = Counter(_DRAWN.sub("…", name) for name in names)
        self.said += [f"temporary {kind}: {count}, removed" for kind, count in sorted(kinds.items())]
        shutil.rmtree(self.scratch, ignore_errors=True)
        os.environ.clear()
        os.environ.update(self.before)
        tempfile.tempdir = None
        return failed


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Begin, in the process that the others descend from."""
    if not hasattr(config, "workerinput"):
        config.stash[_run_key] = _Run(config)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Look for threads in each process that ran tests, and for the rest when all of them have ended."""
    threads = _threads_left()
    run = session.config.stash.get(_run_key, None)
    if run is None:
        session.config.workeroutput["left"] = threads  # type: ignore[attr-defined]
        return
    run.threads += threads
    if run.end() and os.environ.get("CORDWOOD_LEFTOVERS") == "fail" and not session.exitstatus:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Take what a process of pytest-xdist found, if it came to its end."""
    node.config.stash[_run_key].threads += getattr(node, "workeroutput", {}).get("left", [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print it."""
    said = terminalreporter.config.stash[_run_key].said
    if said:
        terminalreporter.section("what was left behind")
    for line in said:
        terminalreporter.write_line(line)


def _threads_left() -> list[str]:
    """Return the threads that are neither the runner's nor ending."""
    limit = Limit(ENDING_SECONDS)
    while True:
        found = [each for each in threading.enumerate() if not each.name.startswith(_OF_THE_RUNNER)]
        if not found or limit.passed():
            return [f"thread {each.name} of process {os.getpid()}" for each in found]
        found[0].join(0.1)


def _processes_of(mark: str) -> dict[int, str]:
    """Return what runs for the run with that mark: the command, and the test that started it."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        # It may be gone by now, or be another user's. One that ended unnoticed has no environment any more.
        with contextlib.suppress(OSError):
            environment = entry.joinpath("environ").read_bytes().split(b"\0")
            if f"{MARK}={mark}".encode() in environment and int(entry.name) != os.getpid():
                command = entry.joinpath("cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                tests = [
                    each[20:].decode() for each in environment if each.startswith(b"PYTEST_CURRENT_TEST=")
                ]
                found[int(entry.name)] = f"{command[:120].strip()}, started by {(tests or ['no test'])[0]}"
    return found


def _files_in(root: Path) -> set[str]:
    """Return the files of a checkout, but those that tools keep for themselves."""
    found = set()
    for directory, below, names in os.walk(root):
        below[:] = [name for name in below if not name.startswith(".") and name != "__pycache__"]
        found |= {os.path.relpath(os.path.join(directory, name), root) for name in names}
    return found
