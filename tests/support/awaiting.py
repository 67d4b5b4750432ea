"""The library for asyncio behind the calls of the other one, so that the tests of one are those of both.

`LoopThread` runs an event loop in a thread of its own. `open_awaited` opens a log on it, on a disk that
refuses every call of that thread, and returns an object with the methods of `cordwood.Log`, each of which
awaits.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import TracebackType
from typing import Any, TypeVar

import cordwood.aio
from cordwood.aio.reading import AsyncReading, AsyncScan
from cordwood.aio.transaction import TransactionOpening
from cordwood.disk.choosing import files_of
from cordwood.disk.files import File, Files, Mode
from cordwood.disk.memory import MemoryFiles
from cordwood.embedded.scan import Scan
from cordwood.host.machine import new_event_loop
from support.clocks import HookedFiles
from support.disks import FaultyFile
from support.patience import SECONDS_MAX

Result = TypeVar("Result")

#: Threads for the streams of tests, each of which may be stuck in one.
_STREAMS_MAX = 32


class Carried(Exception):
    """What a stream raised that would end the event loop, such as KeyboardInterrupt."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(repr(error))
        self.error = error


class LoopThread:
    """An event loop in a thread. `refused` names every disk call that came from that thread."""

    def __init__(self) -> None:
        self.loop = new_event_loop()
        self.refused: list[str] = []
        self.opened: list[AwaitedLog] = []
        self.streams = ThreadPoolExecutor(_STREAMS_MAX, "pytest-streams")
        self._thread = threading.Thread(target=self.loop.run_forever, name="pytest-loop", daemon=True)
        self._thread.start()

    def run(self, awaitable: Awaitable[Result]) -> Result:
        """Return the result of *awaitable*, which is awaited on the loop; raise what it raises."""

        async def carry() -> tuple[Any, BaseException | None]:
            try:
                return await awaitable, None
            except Carried as carried:
                return None, carried.error
            except BaseException as error:
                # Returned and not raised: an interrupt from a disk would end the loop.
                return None, error

        result, error = asyncio.run_coroutine_threadsafe(carry(), self.loop).result()
        if error is not None:
            raise error
        found: Result = result
        return found

    def check(self, call: str) -> None:
        """Refuse a disk call that comes from the thread of the loop."""
        if threading.get_ident() == self._thread.ident:
            self.refused.append(call)
            raise AssertionError(f"{call} on the thread of the event loop")

    def close_logs(self) -> None:
        """Close the logs that a test left open, and with them their threads."""
        opened, self.opened = self.opened, []
        for log in opened:
            with suppress(Exception):
                log.close()

    def close(self) -> None:
        """End the loop and its thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(SECONDS_MAX)
        self.loop.close()
        self.streams.shutdown()


class OffLoopFiles(HookedFiles):
    """Passes everything on to *inner*, and refuses what comes from the thread of an event loop."""

    def __init__(self, inner: Files, check: Callable[[str], None]) -> None:
        super().__init__(inner)
        self.check = check
        self.before = lambda kind, path: check(f"{kind} {path}")

    def open(self, path: str, mode: Mode) -> File:
        return _OffLoopFile(self, self.call("open", path, lambda: self.inner.open(path, mode)))


def refused_here() -> Callable[[str], None]:
    """Return a check that refuses disk calls of this thread, which runs a loop."""
    loop_thread = threading.get_ident()

    def check(call: str) -> None:
        assert threading.get_ident() != loop_thread, f"{call} on the thread of the event loop"

    return check


class _OffLoopFile(FaultyFile):
    """A file of `OffLoopFiles`."""

    def close(self) -> None:
        assert isinstance(self._files, OffLoopFiles)
        self._files.check(f"close {self.path}")
        super().close()


class Awaited:
    """The methods of an object of `cordwood.aio`, each awaited; what they return is wrapped the same way."""

    def __init__(self, thread: LoopThread, inner: Any) -> None:
        self._thread = thread
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found):
            return found

        def call(*arguments: Any, **options: Any) -> Any:
            plain = [each._inner if isinstance(each, Awaited) else each for each in arguments]
            if isinstance(self, AwaitedTransaction):
                # Its methods that await nothing are for the loop too.
                return self._thread.run(_called(found, plain, options))
            result = found(*plain, **options)
            if isinstance(result, Coroutine):
                result = self._thread.run(result)
            return self._wrapped(result)

        return call

    def _wrapped(self, result: Any) -> Any:
        if isinstance(result, AsyncReading):
            return self._records(self._thread.run(result.begin()))
        if isinstance(result, cordwood.aio.Topic):
            return AwaitedTopic(self._thread, result)
        if isinstance(result, TransactionOpening):
            return AwaitedTransaction(self._thread, self._thread.run(result))
        return Awaited(self._thread, result) if isinstance(result, cordwood.aio.Snapshots) else result

    def _records(self, reading: AsyncReading) -> Iterator[cordwood.Record]:
        while True:
            try:
                record = self._thread.run(anext(reading))
            except StopAsyncIteration:
                return
            yield record


async def _called(call: Callable[..., Any], arguments: list[Any], options: dict[str, Any]) -> Any:
    """Return the result of *call* on the loop, awaited if need be."""
    result = call(*arguments, **options)
    return await result if isinstance(result, Coroutine) else result


class AwaitedTransaction(Awaited):
    """`cordwood.aio.Transaction` with the methods of `cordwood.Transaction`."""

    def __enter__(self) -> AwaitedTransaction:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.run(self._inner.__aexit__(kind, error, trace))


class AwaitedTopic(Awaited):
    """`cordwood.aio.Topic` with the methods of `cordwood.Topic`."""

    def append_stream(self, chunks: Iterable[Any], **options: Any) -> Any:
        return self._thread.run(self._inner.append_stream(self._pieces(chunks), **options))

    async def _pieces(self, chunks: Iterable[Any]) -> AsyncIterator[Any]:
        """Yield the chunks of a plain iterable, which may block, or raise what ends a loop."""
        iterator, end = iter(chunks), object()

        def step() -> tuple[Any, BaseException | None]:
            try:
                return next(iterator, end), None
            except BaseException as error:
                return end, error

        while True:
            chunk, error = await self._thread.loop.run_in_executor(self._thread.streams, step)
            if error is not None:
                raise error if isinstance(error, Exception) else Carried(error)
            if chunk is end:
                return
            yield chunk

    def scan(self, *arguments: Any, **options: Any) -> Any:
        plain = self._inner._topic.scan(*arguments, **options)
        return _scan(self._thread, plain, self._inner.scan(*arguments, **options))

    @property
    def _log(self) -> AwaitedLog:
        return AwaitedLog(self._thread, cordwood.aio.Log(self._inner._engine))


class AwaitedLog(Awaited):
    """`cordwood.aio.Log` with the methods of `cordwood.Log`."""

    def __enter__(self) -> AwaitedLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def topics(self) -> Any:
        return self._thread.run(self._inner.topics())

    def scan(self, *arguments: Any, **options: Any) -> Any:
        plain = self._inner._log.scan(*arguments, **options)
        return _scan(self._thread, plain, self._inner.scan(*arguments, **options))


def _scan(thread: LoopThread, plain: Scan, awaited: AsyncScan) -> Scan:
    """Return *plain* with the batches of *awaited*."""

    class AwaitedScan(Scan):
        def batches(self) -> Iterator[Any]:
            # Other columns than those asked for come from a tool that needs fewer.
            same = self.columns == plain.columns
            narrowed = Scan(**{name: getattr(self, name) for name in Scan.__dataclass_fields__})
            iterator = aiter(awaited if same else AsyncScan(awaited._engine, lambda: narrowed))
            while True:
                try:
                    batch = thread.run(anext(iterator))
                except StopAsyncIteration:
                    return
                yield batch

    return AwaitedScan(**{name: getattr(plain, name) for name in Scan.__dataclass_fields__})


def open_awaited(
    thread: LoopThread, path: str | os.PathLike[str], *, files: Files | None = None, **options: Any
) -> AwaitedLog:
    """Open a log on the loop of *thread*, on a disk that refuses calls from there."""
    if files is None:
        config = cordwood.embedded.opening._config_of(None, None)
        memory = os.fspath(path) == ":memory:"
        files = MemoryFiles() if memory else files_of(os.path.abspath(path), config)
    guarded = OffLoopFiles(files, thread.check)

    async def opened() -> cordwood.aio.Log:
        return await cordwood.aio.open(path, files=guarded, **options)

    log = AwaitedLog(thread, thread.run(opened()))
    thread.opened.append(log)
    return log
