"""`cordwood.aio.Broker`: the Kafka server in this process, started and closed off the event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Generator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from cordwood.aio.calls import AwaitedCalls
from cordwood.disk import Files
from cordwood.errors import LogClosed, LogFailed
from cordwood.host import Clock, Host

if TYPE_CHECKING:
    from cordwood.server import Broker


class AsyncBroker:
    """A Kafka broker in this process: `cordwood.Broker`, which says what the arguments are.

    ``async with cordwood.aio.Broker() as broker`` starts it and closes it at the end; ``await`` starts it and
    leaves closing to the caller. It serves on threads of its own, whatever the event loop does.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        listen: str = "localhost:0",
        config: Mapping[str, str] | None = None,
        tls: bool | Mapping[str, str | os.PathLike[str]] = False,
        users: Mapping[str, str] | None = None,
        files: Files | None = None,
        clock: Clock | None = None,
    ) -> None:

        def make() -> Broker:
            # Imported by the thread that starts the broker: that takes a fifth of a second.
            from cordwood.server import Broker

            return Broker(path, listen=listen, config=config, tls=tls, users=users, files=files, clock=clock)

        self._make: Callable[[], Broker] = make
        self._broker: Broker | None = None
        self._calls: AwaitedCalls | None = None
        self._closing: asyncio.Task[None] | None = None

    def __await__(self) -> Generator[Any, None, AsyncBroker]:
        return self._start().__await__()

    async def __aenter__(self) -> AsyncBroker:
        return await self._start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _start(self) -> AsyncBroker:
        """Start the broker. If the task is cancelled meanwhile, the broker is closed again."""
        if self._calls is not None:
            raise LogClosed("a broker is started once: make another one")
        self._calls = AwaitedCalls("aio-broker", 1, asyncio.get_running_loop(), Host())
        try:
            self._broker = await self._calls.run(self._make, dropped=lambda broker: broker.close())
        except BaseException:
            self._calls.stop()
            raise
        return self

    @property
    def _started(self) -> Broker:
        if self._broker is None:
            raise LogClosed("the broker is not started: await it, or use async with")
        return self._broker

    @property
    def bootstrap(self) -> str:
        """The first address."""
        return self._started.bootstrap

    @property
    def addresses(self) -> dict[str, str]:
        """The address of each listener, by its name."""
        return self._started.addresses

    @property
    def failure(self) -> LogFailed | None:
        """The failure after which the broker stores nothing, or None."""
        return self._started.failure

    @property
    def ca_pem(self) -> str | None:
        """The authority of a certificate that was made for this broker, as PEM text, or None."""
        return self._started.ca_pem

    @property
    def ca_path(self) -> str | None:
        """The path of a file with `ca_pem`, which exists until the broker is closed, or None."""
        return self._started.ca_path

    @property
    def metrics_url(self) -> str | None:
        """The URL of the metrics, or None if ``cordwood.metrics.listen`` is empty."""
        return self._started.metrics_url

    async def topics(self) -> list[str]:
        """Return the names of all topics, sorted, without those of the broker itself."""
        assert self._calls is not None
        broker = self._started
        return await self._calls.run(lambda: broker.topics)

    async def close(self) -> None:
        """Answer pending requests, sync and close. Idempotent. Cancelling it does not stop the closing.

        Raises:
            LogFailed: If a partition failed, now or before.
        """
        if self._broker is None:
            return
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close(self._broker))
        elif self._closing.done():
            return
        await asyncio.shield(self._closing)

    async def _close(self, broker: Broker) -> None:
        assert self._calls is not None
        try:
            await self._calls.run(broker.close)
        finally:
            self._calls.stop()
