"""What the scenarios of frameworks share: programs that are built or installed, and topics that are fed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from confluent_kafka import KafkaError, Message, Producer
from interop.apache_kafka import free_ports
from interop.copying import CommittedReader, Worker
from interop.kafka_jars import java_command
from interop.toolbox import HERE, fetch, kept, program
from support.patience import SECONDS_MAX, Limit, until

#: The section of the report, and the table of docs/protocol.md.
SECTION = "frameworks"
#: A JVM that runs for a minute: the first compiler tier alone, and little memory.
SMALL = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m")
#: When the first record was made. A broker removes those that are older than a week, as soon as it looks.
FIRST_TIME = int(time.time() * 1000) - 3_600_000
#: How often a program may give up while a broker is gone.
STARTS_MAX = 10
PRINTED_SECONDS_MAX = READ_SECONDS_MAX = 300.0


def compiled_java(
    source: Path, classpath: str, arguments: Sequence[str], options: Sequence[str] = SMALL
) -> list[str]:
    """Return the command that runs the class of the file *source*, which is compiled the first time.

    Raises:
        ToolMissing: If there is no Java or no compiler.
    """

    def fill(directory: Path) -> None:
        command = [program("javac"), "-nowarn", "-parameters", "-d", str(directory), "-cp", classpath]
        # What does not compile is our mistake, and no reason to skip anything.
        subprocess.run([*command, str(source)], check=True)

    poms = sorted(source.parent.glob("pom.xml"))
    classes = kept(f"classes-{source.stem.lower()}", [source, *poms], fill)
    return java_command(source.stem, arguments, options, os.pathsep.join([str(classes), classpath]))


def python_packages(name: str) -> Path:
    """Return the directory with the packages of ``python/NAME.txt``, for PYTHONPATH.

    Raises:
        ToolMissing: If they cannot be fetched.
    """
    pins = HERE / "python" / f"{name}.txt"

    def fill(directory: Path) -> None:
        quiet = ["--quiet", "--disable-pip-version-check", "--only-binary", ":all:"]
        command: list[str | Path] = [
            sys.executable,
            "-m",
            "pip",
            "install",
            *quiet,
            "--target",
            directory,
            "-r",
            pins,
        ]
        fetch(command, directory)

    return kept(f"python-{name}", [pins], fill)


def pinned_version(name: str) -> str:
    """Return the version of the package *name* in ``python/NAME.txt``."""
    lines = (HERE / "python" / f"{name}.txt").read_text().splitlines()
    (line,) = (line for line in lines if re.match(rf"{name}(\[.*\])?==", line))
    return line.partition("==")[2]


def feed(bootstrap: str, topic: str, records: Iterable[tuple[str, str, int]]) -> None:
    """Send keys, values and timestamps to a topic; all are acknowledged on return."""
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failed.append(error)

    settings = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 20, "log_level": 0}
    producer = Producer(settings)
    for key, value, timestamp in records:
        producer.produce(topic, value, key, timestamp=timestamp, on_delivery=delivered)
        producer.poll(0)
    assert producer.flush(SECONDS_MAX) == 0
    assert not failed, failed[0]


def until_read(
    reader: CommittedReader, count: int, worker: Worker, stalled_seconds: float | None = None
) -> None:
    """Read until *count* different values were read; a program that gave up is started again.

    Only the last word of each value counts. A program after which nothing came for *stalled_seconds* counts
    as one that gave up.
    """
    started = known = 0
    stalled = Limit(stalled_seconds or READ_SECONDS_MAX)

    def read() -> bool:
        nonlocal started, known, stalled
        started += worker.revive()
        reader.poll()
        found = len({value.split()[-1] for part in reader.values for value in part})
        if found > known:
            known, stalled = found, Limit(stalled_seconds or READ_SECONDS_MAX)
        elif stalled_seconds is not None and stalled.passed():
            worker.restart(kill=True)
            started, stalled = started + 1, Limit(stalled_seconds)
        assert started < STARTS_MAX, f"it gave up {started} times"
        return found >= count

    try:
        until(read, f"{count} values were read", READ_SECONDS_MAX, pause=0)
    except AssertionError as error:
        raise AssertionError(f"{error}, but {reader.count} records: {worker.printed()[-5000:]}") from error


def free_port() -> int:
    """Return a port that nobody listens at."""
    (port,) = free_ports(1)
    return port


def properties(path: Path, settings: dict[str, str]) -> Path:
    """Write *settings* as Java reads them."""
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return path


def until_printed(worker: Worker, text: str) -> None:
    """Wait until a program printed *text*; it must not have ended before."""

    def printed() -> bool:
        if text in worker.printed():
            return True
        assert worker.process.poll() is None, worker.printed()[-5000:]
        return False

    until(printed, f"the program printed {text!r}", PRINTED_SECONDS_MAX, pause=0.2)
