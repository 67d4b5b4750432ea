"""The brokers that the same programs run against: ours, and Apache Kafka's as the oracle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Protocol

from interop.apache_kafka import apache_kafka
from interop.report import Report
from support.serving import ServerProcess, serving

OURS, APACHE = "cordwood", "apache-kafka"
NAMES = (OURS, APACHE)
#: If not told otherwise, Kafka looks for timed-out transactions every 10 s and keeps them in 50 partitions.
_APACHE_SETTINGS = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "transaction.state.log.num.partitions": "1",
}


class Broker(Protocol):
    """A broker of one node that can be ended and started again."""

    bootstrap: str

    def restart(self, *, kill: bool = False) -> None:
        """End it, as kill -9 does or cleanly, and start it again on the same data and port."""


@contextmanager
def running_broker(name: str, directory: Path, settings: Mapping[str, str] | None = None) -> Iterator[Broker]:
    """Run the broker *name* on an empty *directory* for as long as the context lasts.

    Raises:
        ToolMissing: If it is Apache Kafka and there is no Java, no Maven, or Kafka cannot be fetched.
    """
    if name == APACHE:
        with apache_kafka(directory, {**_APACHE_SETTINGS, **(settings or {})}) as broker:
            yield broker
        return
    with serving(directory, settings) as server:
        yield server
        assert server.stop() == 0
        assert "Traceback" not in server.errors, server.errors


def reported(
    report: Report, broker: Broker, name: str, version: str, check: str, section: str = "tools"
) -> AbstractContextManager[None]:
    """Report *check* of a tool where the broker is ours: the other one is the oracle."""
    return report.check(section, name, version, check) if isinstance(broker, ServerProcess) else nullcontext()
