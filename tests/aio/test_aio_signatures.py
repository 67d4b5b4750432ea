"""The library for asyncio takes the arguments of the synchronous one."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from support.clocks import ManualClock
from support.logs import DATA
from support.patience import SECONDS_MAX

import cordwood
import cordwood.aio
from cordwood.disk.memory import MemoryFiles
from cordwood.storage.directory import Snapshots

PAIRS: dict[str, tuple[Any, Any]] = {
    "Log": (cordwood.Log, cordwood.aio.Log),
    "Topic": (cordwood.Topic, cordwood.aio.Topic),
    "Transaction": (cordwood.Transaction, cordwood.aio.Transaction),
    "Snapshots": (Snapshots, cordwood.aio.Snapshots),
    "Scan": (cordwood.Scan, cordwood.aio.Scan),
    "Broker": (cordwood.Broker, cordwood.aio.Broker),
}
FUNCTIONS: dict[str, tuple[Callable[..., object], Callable[..., object]]] = {
    "open": (cordwood.open, cordwood.aio.open),
    "replay": (cordwood.replay, cordwood.aio.replay),
    "Broker": (cordwood.Broker, cordwood.aio.Broker),
}
#: Every public call that only one of the two has, with the reason.
DELIBERATE = {
    "Log.directory": "for tools, which are synchronous",
    "Log.transactions": "for the engine behind transactions",
    "Log.topics": "a method there, because it may read the catalogue",
    "Broker.topics": "a method there, because it reads the catalogue",
    "Topic.plain": "the synchronous topic behind the awaited one",
    "Transaction.check_open": "for the engine behind commits",
    "Transaction.committed": "for the engine behind commits",
    "Scan.committed": "a field, as every option that the scan was given",
    "Broker.addresses": "an attribute there, a property here",
    "Broker.log": "a log to read in the calling thread, which an event loop must not do",
    "Broker.bootstrap": "an attribute there, a property here",
    "Scan.batches": "async for over the scan gives them",
    "Scan.reader": "a pyarrow reader pulls its batches synchronously",
    "Scan.lazy": "polars pulls its batches synchronously",
    "Scan.schema": "the table and the batches have it",
    "Scan.table": "the synchronous scan is given to pyarrow.table",
}


def public(found: type) -> dict[str, Any]:
    """Return the methods and properties of a class, by name."""
    return {name: value for name, value in inspect.getmembers(found) if not name.startswith("_")}


def arguments(call: Callable[..., object]) -> list[tuple[str, str, object]]:
    """Return name, kind and default of every argument but self."""
    parameters = inspect.signature(call).parameters.values()
    # A host is the seam through which tests give the synchronous broker another machine.
    left_out = {"self", "host"} if call is cordwood.Broker else {"self"}
    return [(each.name, each.kind.name, each.default) for each in parameters if each.name not in left_out]


@pytest.mark.parametrize("name", PAIRS)
def test_every_public_call_is_there_with_the_same_arguments_and_defaults(name: str) -> None:
    plain, awaited = (public(each) for each in PAIRS[name])
    only_one = {f"{name}.{each}" for each in plain.keys() ^ awaited.keys()}
    differ = {
        f"{name}.{each}": (arguments(plain[each]), arguments(awaited[each]))
        for each in plain.keys() & awaited.keys()
        if callable(plain[each]) and arguments(plain[each]) != arguments(awaited[each])
    }
    assert only_one - DELIBERATE.keys() == set()
    assert differ == {}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_takes_the_same_arguments_with_the_same_defaults(name: str) -> None:
    plain, awaited = FUNCTIONS[name]
    assert arguments(plain) == arguments(awaited)


def test_the_list_of_deliberate_differences_names_only_differences() -> None:
    found = set()
    for name, (plain, awaited) in PAIRS.items():
        ours, theirs = public(plain), public(awaited)
        found |= {f"{name}.{each}" for each in ours.keys() ^ theirs.keys()}
        both = ours.keys() & theirs.keys()
        found |= {f"{name}.{each}" for each in both if callable(ours[each]) != callable(theirs[each])}
    assert DELIBERATE.keys() <= found


def test_what_is_given_reaches_the_synchronous_library() -> None:
    """The arguments that were missing: `index_cache`, `older_than_ms`, `dry_run`, and `Snapshots.after`."""

    async def main() -> None:
        clock = ManualClock()
        async with cordwood.aio.open(DATA, files=MemoryFiles(), clock=clock, index_cache="none") as log:
            assert log.data_directory.context.open_files.indexes._limit == 0
            topic = await log.topic("t", 1, {"retention.ms": "-1"})
            for i in range(4):
                await topic.append(b"%d" % i)
            report = await topic.truncate(0, 1, dry_run=True)
            assert (report.removed_offsets, await topic.high_watermark()) == (3, 4)
            await topic.snapshots().save(3, b"state")
            assert (await topic.snapshots().after(2)).snapshot is not None
            assert (await topic.snapshots().after(3)).snapshot is None
            clock.advance(10_000)
            assert await topic.remove_expired() == 0
            assert await topic.remove_expired(5_000) == 4

    asyncio.run(asyncio.wait_for(main(), SECONDS_MAX))


IMPORTS = """
import asyncio, sys, threading
import cordwood.aio

class Noted:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("cordwood.server"):
            found.add(threading.current_thread() is threading.main_thread())

found = set()
sys.meta_path.insert(0, Noted())

async def main():
    made = cordwood.aio.Broker()
    assert not found, "imported before it starts"
    async with made as broker:
        print(broker.bootstrap.rpartition(":")[0])

asyncio.run(main())
assert found == {False}, found
"""


def test_a_broker_imports_the_server_in_the_thread_that_starts_it() -> None:
    """The import takes a fifth of a second, in which the event loop would do nothing."""
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "127.0.0.1\n"), done.stderr
