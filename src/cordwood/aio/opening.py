"""`open` a data directory for asyncio."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from cordwood.aio.engine import AsyncEngine
from cordwood.aio.log import AsyncLog
from cordwood.disk import Files
from cordwood.embedded import Log
from cordwood.embedded import open as open_now
from cordwood.host import Clock, Host

if TYPE_CHECKING:
    from cordwood.bucket import ObjectStore


class LogOpening:
    """The result of `open`: ``await`` it, or use it with ``async with``, which closes the log at its end."""

    def __init__(self, make: Callable[[], Log]) -> None:
        self._make = make
        self._opened: AsyncLog | None = None

    def __await__(self) -> Generator[Any, None, AsyncLog]:
        return self._open().__await__()

    async def __aenter__(self) -> AsyncLog:
        self._opened = await self._open()
        return self._opened

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._opened is not None
        await self._opened.close()

    async def _open(self) -> AsyncLog:
        engine = AsyncEngine(asyncio.get_running_loop(), Host())
        await engine.open(self._make)
        return AsyncLog(engine)


def open(  # noqa: A001 - the library is used as cordwood.aio.open
    path: str | os.PathLike[str],
    *,
    read_only: bool = False,
    sync: str | None = None,
    index_cache: int | Literal["all", "none"] | None = None,
    create: bool = True,
    bucket: str | ObjectStore | None = None,
    files: Files | None = None,
    clock: Clock | None = None,
) -> LogOpening:
    """Open the data directory at *path* for the tasks of this event loop.

    With ``async with cordwood.aio.open(path) as log`` it is closed at the end. After ``log = await
    cordwood.aio.open(path)`` the caller closes it. The arguments and exceptions are those of `cordwood.open`.
    A task that is cancelled while it opens leaves nothing open.
    """
    return LogOpening(
        lambda: open_now(
            path,
            read_only=read_only,
            sync=sync,
            index_cache=index_cache,
            create=create,
            bucket=bucket,
            files=files,
            clock=clock,
        )
    )
