"""Workers of Kafka Connect in distributed mode, asked over their REST interface."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from interop.copying import Worker
from interop.frameworks import SMALL, free_port, properties
from interop.kafka_jars import java_command
from support.patience import until

#: What a worker needs to start, or to find itself in its group again.
READY_SECONDS_MAX = 300.0


class ConnectWorker(Worker):
    """A worker that listens at `address`."""

    def __init__(
        self, bootstrap: str, directory: Path, name: str, settings: Mapping[str, str], classpath: str | None
    ) -> None:
        self.address = f"http://127.0.0.1:{free_port()}"
        self._ended = False
        path = properties(
            directory / f"worker-{name}.properties",
            {
                "bootstrap.servers": bootstrap,
                "group.id": "connect",
                "listeners": self.address,
                "key.converter": "org.apache.kafka.connect.storage.StringConverter",
                "value.converter": "org.apache.kafka.connect.storage.StringConverter",
                "offset.storage.topic": "connect-offsets",
                "offset.storage.partitions": "2",
                "offset.flush.interval.ms": "1000",
                "config.storage.topic": "connect-configs",
                "status.storage.topic": "connect-status",
                "status.storage.partitions": "1",
                # The broker's default.
                **{f"{each}.storage.replication.factor": "-1" for each in ("offset", "config", "status")},
                "session.timeout.ms": "10000",
                "scheduled.rebalance.max.delay.ms": "1000",
                "consumer.auto.offset.reset": "earliest",
                "plugin.discovery": "only_scan",
                **settings,
            },
        )
        main = "org.apache.kafka.connect.cli.ConnectDistributed"
        super().__init__(java_command(main, [str(path)], SMALL, classpath), directory / f"worker-{name}.txt")

    def start(self) -> None:
        """Start it."""
        super().start()
        self._ended = False

    def stop(self, *, kill: bool = False) -> None:
        """End it with SIGTERM, or as kill -9 does."""
        self._ended = True
        super().stop(kill=kill)

    def check(self) -> None:
        """Fail if it ended of its own accord."""
        assert self._ended or self.process.poll() is None, self.printed()[-5000:]

    def configure(self, connector: str, settings: Mapping[str, str]) -> None:
        """Create a connector, or change its settings."""
        self.ask("PUT", f"connectors/{connector}/config", settings)

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """Return what the worker answers, as soon as it is ready to."""
        request = urllib.request.Request(
            f"{self.address}/{path}",
            data=None if body is None else json.dumps(body).encode(),
            method=method,
            headers={"Content-Type": "application/json"},
        )
        answers: list[bytes] = []
        said = [""]

        def answered() -> bool:
            self.check()
            try:
                with urllib.request.urlopen(request, timeout=120) as answer:
                    answers.append(answer.read())
            except urllib.error.HTTPError as error:
                said[0] = f"{error} {error.read().decode(errors='replace')}"
                # It is still starting, joining its group, or has not yet stopped a connector.
                if error.code not in {400, 404, 409, 500, 503}:
                    raise
            except OSError as error:
                said[0] = str(error)
            return bool(answers)

        try:
            until(answered, f"{method} {path} was answered", READY_SECONDS_MAX, pause=0.5)
        except AssertionError as error:
            raise AssertionError(f"{error}: {said[0]}\n{self.printed()[-3000:]}") from error
        return json.loads(answers[0] or b"null")


@contextmanager
def connect_worker(
    bootstrap: str,
    directory: Path,
    name: str,
    settings: Mapping[str, str] | None = None,
    classpath: str | None = None,
) -> Iterator[ConnectWorker]:
    """Run a worker for as long as the context lasts."""
    worker = ConnectWorker(bootstrap, directory, name, settings or {}, classpath)
    try:
        yield worker
    finally:
        if worker.process.poll() is None:
            worker.stop(kill=True)
