"""The tests here are the contract of the library: each runs on `cordwood` and on `cordwood.aio`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
from support.awaiting import LoopThread, open_awaited

import cordwood


@pytest.fixture(scope="session")
def loop_thread() -> Iterator[LoopThread]:
    """An event loop that the awaited library runs on."""
    thread = LoopThread()
    yield thread
    thread.close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test with both libraries, but those about threads and processes of the synchronous one."""
    one = metafunc.definition.get_closest_marker("called_only")
    metafunc.parametrize("library", ["called"] if one else ["called", "awaited"], indirect=True)


@pytest.fixture(autouse=True)
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Which library ``cordwood.open`` opens; with the awaited one, no disk call may come from the loop."""
    which: str = request.param
    if which == "called":
        yield which
        return
    thread: LoopThread = request.getfixturevalue("loop_thread")
    monkeypatch.setattr(cordwood, "open", partial(open_awaited, thread))
    thread.refused.clear()
    yield which
    thread.close_logs()
    assert thread.refused == [], "disk calls on the thread of the event loop"
