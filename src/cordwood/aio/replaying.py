"""Snapshots and replay with asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from threading import Event
from typing import TYPE_CHECKING, TypeVar

from cordwood.aio.engine import AsyncEngine
from cordwood.embedded import Replayed
from cordwood.embedded import replay as replay_now
from cordwood.records import Record
from cordwood.storage.directory import Nearest, Snapshots, StateSnapshot

if TYPE_CHECKING:
    from cordwood.aio.topic import AsyncTopic

State = TypeVar("State")


class AsyncSnapshots:
    """The snapshots of one partition. One task at a time saves; any number read."""

    def __init__(self, engine: AsyncEngine, find: Callable[[], Snapshots]) -> None:
        self._engine = engine
        self._find = find

    async def offsets(self) -> list[int]:
        """Return the offsets there are snapshots of, damaged ones included, in order."""
        return await self._engine.call(lambda: self._find().offsets())

    async def save(self, offset: int, state: bytes) -> StateSnapshot:
        """Write *state*, the state after every record below *offset*. Durable on return.

        Raises:
            OffsetOutOfRange: If records below *offset* are missing, or not synced.
        """
        return await self._engine.call(lambda: self._find().save(offset, state))

    async def nearest(self, offset: int) -> Nearest:
        """Return the last sound snapshot at or before *offset*, and why others were passed over."""
        return await self._engine.call(lambda: self._find().nearest(offset))

    async def after(self, offset: int) -> Nearest:
        """Return the first sound snapshot after *offset*, and why others were passed over."""
        return await self._engine.call(lambda: self._find().after(offset))

    async def keep_newest(self, count: int) -> int:
        """Remove all snapshots but the newest *count*; return how many that were."""
        return await self._engine.call(lambda: self._find().keep_newest(count))


class ReplayStopped(Exception):
    """The task that asked for a replay was cancelled. Nobody sees it."""


async def replay(
    topic: AsyncTopic,
    fold: Callable[[State, Record], State],
    initial: State,
    *,
    encode: Callable[[State], bytes],
    decode: Callable[[bytes], State],
    partition: int = 0,
    end_offset: int | None = None,
    save_every: int | None = None,
    committed: bool = True,
) -> Replayed[State]:
    """Return the state after every record below *end_offset*; see `cordwood.replay`.

    *fold*, *encode* and *decode* are called in a thread. A replay that is cancelled ends before its next
    record; snapshots that it saved stay.
    """
    stopping = Event()

    def fold_until_stopped(state: State, record: Record) -> State:
        if stopping.is_set():
            raise ReplayStopped
        return fold(state, record)

    try:
        return await topic._engine.call_long(
            lambda: replay_now(
                topic._topic,
                fold_until_stopped,
                initial,
                encode=encode,
                decode=decode,
                partition=partition,
                end_offset=end_offset,
                save_every=save_every,
                committed=committed,
            )
        )
    except asyncio.CancelledError:
        stopping.set()
        raise
