"""An Apache Kafka broker, one node in KRaft mode: the oracle of the scenarios, and a peer to measure."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from confluent_kafka.admin import AdminClient
from interop.kafka_jars import java_command, run_tool

#: It takes ten seconds on a quiet machine.
START_SECONDS_MAX = 300
#: What Kafka's own scripts start a broker with.
JAVA_OPTIONS = (
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
_CLUSTER_ID = "Y29yZHdvb2QtaW50ZXJvcA"


class ApacheKafka:
    """A running broker. ``bootstrap`` stays the same over `restart`; ``directory`` has its log too.

    *more* listeners have a name and a security protocol each; ``addresses`` has where they are.
    """

    def __init__(
        self, directory: Path, settings: Mapping[str, str], more: Mapping[str, str] | None = None
    ) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        protocols = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT", **(more or {})}
        self.addresses = {
            name: f"127.0.0.1:{port}"
            for name, port in zip(protocols, free_ports(len(protocols)), strict=True)
        }
        self.bootstrap = self.addresses["PLAINTEXT"]
        self.process: subprocess.Popen[bytes]
        self._properties = directory / "server.properties"
        everything = {
            "process.roles": "broker,controller",
            "node.id": "0",
            "controller.quorum.voters": f"0@{self.addresses['CONTROLLER']}",
            "listeners": ",".join(f"{name}://{address}" for name, address in self.addresses.items()),
            "listener.security.protocol.map": ",".join(map(":".join, protocols.items())),
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(directory / "data"),
            # One node can hold one replica, and one test needs no fifty partitions of offsets.
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            # As here: the first member of a group waits for nobody.
            "group.initial.rebalance.delay.ms": "0",
            **settings,
        }
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in everything.items()))
        run_tool("kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(self._properties))
        self.start()

    @property
    def pid(self) -> int:
        """The process that serves."""
        return self.process.pid

    def start(self) -> None:
        """Start it, and wait until it serves."""
        command = java_command("kafka.Kafka", [str(self._properties)], JAVA_OPTIONS)
        with (self.directory / "broker.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            # That nobody listens at first is no news, and would be written to stderr.
            with AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0}) as admin:
                admin.list_topics(timeout=START_SECONDS_MAX)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End it as SIGTERM does, or by force if it does not end."""
        self.process.terminate()
        try:
            self.process.wait(START_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def kill(self) -> None:
        """End it as kill -9 does."""
        self.process.kill()
        self.process.wait()

    def restart(self, *, kill: bool = False) -> None:
        """End it and start it again on the same data and port."""
        if kill:
            self.kill()
        else:
            self.stop()
        self.start()


@contextmanager
def apache_kafka(
    directory: Path, settings: Mapping[str, str] | None = None, more: Mapping[str, str] | None = None
) -> Iterator[ApacheKafka]:
    """Run a broker on an empty *directory* for as long as the context lasts, with more *settings*.

    *more* listeners have a name and a security protocol each.

    Raises:
        ToolMissing: If there is no Java, no Maven, or Kafka cannot be fetched.
    """
    broker = ApacheKafka(directory, settings or {}, more)
    try:
        yield broker
    finally:
        broker.stop()


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens at."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
