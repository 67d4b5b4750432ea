"""The server as a process: runs until a signal or a failed sync."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from cordwood.broker import Node
from cordwood.config import BrokerConfig
from cordwood.disk import as_storage_error, files_of
from cordwood.host import Host, process
from cordwood.server.broker import describe, open_node
from cordwood.server.security import check_exposure
from cordwood.server.server import Server, shown

if TYPE_CHECKING:
    from cordwood.bucket import Standing

#: With a limit of fewer file handles than this, a server logs a warning at start.
HANDLES_WANTED = 4096
_LOGGER = logging.getLogger("cordwood.server")
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


Listening = Sequence[tuple[str, str, int]]
"""The name, the address and the org of each listener."""

Ready = Callable[[str, str | None, Listening], None]
"""Called with the address for clients, the URL of the metrics or None, and all listeners."""


def run_server(config: BrokerConfig, ready: Ready, following: Callable[[int], None] | None = None) -> None:
    """Serve the data directory of *config* until SIGTERM or SIGINT, then close cleanly.

    *ready* is called with the addresses once clients can connect. With *following* the server is a standby of
    the log in the bucket first. It is called once the directory has everything that is there, with the number
    of the last piece; the directory is served after the takeover.

    Raises:
        LogFailed: A sync failed. All requests that waited for it got an error; nothing more is stored.
        StorageError: The directory is locked, not a data directory, or cannot be read.
        ListenFailed: An address is in use.
        InvalidSetting: Something would be served without encryption to other machines.
        BucketError: The bucket cannot be used, or another process owns the log in it now.
    """
    check_exposure(config)
    handles = process.raise_handle_limit()
    if handles < HANDLES_WANTED:
        _LOGGER.warning(
            "this process can open only %d files and connections (ulimit -n); "
            "beyond that, files are closed and reopened, and new connections are closed",
            handles,
        )
    host = Host()
    standing = None
    if following is not None:
        standing = _follow(config, host, following)
        if standing is None:
            return
    node = open_node(config.data_dir, config, clock=host.clock, listens=True, host=host, standing=standing)
    loop = host.new_event_loop()
    try:
        loop.run_until_complete(_serve(node, host, ready))
    finally:
        loop.close()


def _follow(config: BrokerConfig, host: Host, following: Callable[[int], None]) -> Standing | None:
    """Follow the log in the bucket until it is taken over, or return None after a signal."""
    # Imported here: few brokers have a bucket.
    from cordwood.bucket import open_standby

    data = os.path.abspath(config.data_dir)
    warn = logging.getLogger("cordwood.bucket").warning
    standby = open_standby(config.bucket, files_of(data, config), data, config, host, warn, following)
    found: list[Standing | None] = []
    failures: list[BaseException] = []

    async def wait() -> None:
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, standby.stop)

        def run() -> None:
            try:
                found.append(standby.run())
            except BaseException as error:
                failures.append(error)
            loop.call_soon_threadsafe(ended.set)

        thread = host.start_thread(run, "standby")
        await ended.wait()
        thread.join()

    loop = host.new_event_loop()
    try:
        loop.run_until_complete(wait())
    finally:
        loop.close()
    for failure in failures:
        if isinstance(failure, OSError):
            raise as_storage_error(failure, "following the log in the bucket") from failure
        raise failure
    return found[0]


async def _serve(node: Node, host: Host, ready: Ready) -> None:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    try:
        server = Server(node, node.directory.settings.config, host)
        server.start()
    except BaseException:
        node.directory.close()
        raise
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stopping.set)
    if hasattr(signal, "SIGHUP"):
        loop.add_signal_handler(signal.SIGHUP, lambda: server.refresh_certificates(force=True))
    describe(node, server.operators_address)
    listening = [(each.name, shown([each]), org) for each, org in server.orgs()]
    # What is here now stays: looking at all of it again would take the loop tens of milliseconds each time.
    gc.collect()
    gc.freeze()
    ready(shown(server.endpoints), server.metrics_url, listening)
    waiting = {loop.create_task(stopping.wait()), loop.create_task(server.failed.wait())}
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()
    await server.close()
    if server.failure is not None:
        # Raised even if the close succeeded: an operator must check the device.
        raise server.failure
