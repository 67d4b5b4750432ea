"""The server as a process: until it is told to end, or can store nothing any more."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence

from cordwood.broker.node import Node
from cordwood.clock import Clock, SystemClock
from cordwood.config import BrokerConfig
from cordwood.server.broker import describe, open_node
from cordwood.server.server import Server, new_event_loop, shown

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


Listening = Sequence[tuple[str, str, int]]
"""Of each listener its name, its address, and the org of who connects there."""

Ready = Callable[[str, str | None, Listening], None]
"""Told where clients can connect, where the metrics are if they are anywhere, and all listeners."""


def run_server(config: BrokerConfig, ready: Ready) -> None:
    """Serve the data directory of *config* until SIGTERM or SIGINT, then close cleanly.

    *ready* is told the addresses once clients can connect.

    Raises:
        LogFailed: A sync failed. Everyone who waited for it was told so; nothing more is stored.
        StorageError: The directory is locked, not ours, or cannot be read.
        ListenFailed: An address is taken.
    """
    clock = SystemClock()
    node = open_node(config.data_dir, config, clock=clock)
    loop = new_event_loop()
    try:
        loop.run_until_complete(_serve(node, config, clock, ready))
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


async def _serve(node: Node, config: BrokerConfig, clock: Clock, ready: Ready) -> None:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    server = Server(node, config, clock)
    try:
        server.start()
    except BaseException:
        node.close()
        raise
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stopping.set)
    describe(node, server.operators_address)
    listening = [(each.name, shown([each]), org) for each, org in server.orgs()]
    ready(shown(server.endpoints), server.metrics_url, listening)
    waiting = {loop.create_task(stopping.wait()), loop.create_task(server.failed.wait())}
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()
    await server.close()
