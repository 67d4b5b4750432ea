"""Limits for tests: one that hangs fails, and the tests after it do not notice.

The limit of a test (``timeout`` in pyproject.toml, its mark, or ``--timeout``) holds for its setup, its call
and its teardown, each on its own, and grows with what `support.patience` finds of the machine. A test that
passes it takes every shared fixture with it: a Spark session or a server that was broken off within a request
is of no use to others, who make their own. A test that the signal cannot break off, because it hangs outside
of Python, ends its process with a dump of all threads; pytest-xdist reports that test alone and starts
another process.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import pytest
from pytest_timeout import is_debugging

from support.patience import SLOWDOWN, Limit

#: The seconds on a quiet machine that a test has to clean up after it was broken off.
AGAIN_SECONDS = 10.0
#: The seconds on a quiet machine after which a test that the signal did not break off ends its process.
GRACE_SECONDS = 120.0
#: The least time between two measurements of a machine that is found to be slow.
_TICK_SECONDS = 0.05

#: Called when a test passes its limit, to end what would be waited for in vain: by what cleans up after the
#: test, and by pytest, which shows the values of variables.
at_limit: list[Callable[[], object]] = []

_limit_key = pytest.StashKey[float]()
_passed_key = pytest.StashKey[bool]()
_stderr_key = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    """Keep the real standard error, which output of tests is captured from."""
    with suppress(OSError, ValueError):
        config.stash[_stderr_key] = os.dup(sys.stderr.fileno())


def pytest_unconfigure(config: pytest.Config) -> None:
    """Give it back."""
    if _stderr_key in config.stash:
        os.close(config.stash[_stderr_key])
        del config.stash[_stderr_key]


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool:
    """Take the limit from pytest-timeout and let it set no timer of its own."""
    item.stash[_limit_key] = settings.timeout
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_cancel_timer(item: pytest.Item) -> bool:
    """Do nothing: each phase cancels its timer itself."""
    return True


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Let no test end its process any more when it is over and reported."""
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Limit the setup."""
    with _limited(item, "setup"):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Limit the test itself."""
    with _limited(item, "call"):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Limit the teardown, which is that of every fixture after a limit was passed."""
    with _limited(item, "teardown"):
        if item.stash.get(_passed_key, False):
            drop_shared_fixtures(item)
        return (yield)


def drop_shared_fixtures(item: pytest.Item) -> None:
    """Tear down the fixtures of every scope; the next test that wants one has it made again."""
    item.session._setupstate.teardown_exact(None)


@contextmanager
def _limited(item: pytest.Item, phase: str) -> Iterator[None]:
    seconds = item.stash.get(_limit_key, 0.0)
    if not seconds or threading.current_thread() is not threading.main_thread():
        yield
        return
    limit = Limit(seconds)
    broken_off = False

    def look(number: int, frame: FrameType | None) -> None:
        nonlocal broken_off
        __tracebackhide__ = True
        if is_debugging():
            return
        left = limit.left()
        if left and not broken_off:
            _arm(item, left)
            return
        broken_off = item.stash[_passed_key] = True
        # What cleans up after the test may hang in its turn, and is broken off as well.
        _arm(item, AGAIN_SECONDS * SLOWDOWN)
        _print_stacks()
        for end in at_limit:
            end()
        pytest.fail(said())

    def said() -> str:
        return f"the {phase} passed its limit: {limit}"

    before = signal.signal(signal.SIGALRM, look)
    try:
        _arm(item, seconds)
        yield
    except Exception as error:
        # What was broken off may fail in its own way, which explains nothing.
        if broken_off:
            pytest.fail(f"{said()}, and then failed with {error!r}")
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    if broken_off:
        pytest.fail(said())


def _arm(item: pytest.Item, seconds: float) -> None:
    """Have the machine measured after *seconds*, and the process ended where that does not come about."""
    signal.setitimer(signal.ITIMER_REAL, max(seconds, _TICK_SECONDS))
    if _stderr_key in item.config.stash:
        last = seconds + GRACE_SECONDS * SLOWDOWN
        faulthandler.dump_traceback_later(last, exit=True, file=item.config.stash[_stderr_key])


def _print_stacks() -> None:
    """Print what the other threads do to standard error, which is reported with the test."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        if ident != threading.get_ident():
            print(f"thread {names.get(ident, ident)}:", file=sys.stderr)
            traceback.print_stack(frame, file=sys.stderr)
