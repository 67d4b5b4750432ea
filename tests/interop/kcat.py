"""The six steps with kcat, which is a program already: it is run for each thing that is to be done.

It creates no topics but those that a broker makes when they are first asked for, and administers nothing.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from interop.six_steps import GROUP_COUNTS, PARTITIONS, Record, SixSteps
from interop.toolbox import CACHE, fetch, kept, program
from support.patience import SECONDS_MAX

#: The package and the libraries of it that a bare system lacks.
PACKAGES = ("kcat", "librdkafka1", "libyajl2")


class Kcat:
    """kcat, as it is installed, or out of Debian's packages without installing them.

    *settings* are librdkafka's.
    """

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        self._options = [part for item in (settings or {}).items() for part in ("-X", "=".join(item))]
        self.environment = dict(os.environ)
        self.path = shutil.which("kcat") or self._unpacked()
        about = subprocess.run(
            [self.path, "-V"], capture_output=True, text=True, env=self.environment, check=True
        )
        found = re.search(r"Version (\S+).*librdkafka (\S+)", about.stdout)
        assert found is not None
        self.version = f"{found[1]} (librdkafka {found[2]})"

    def _unpacked(self) -> str:
        def fill(directory: Path) -> None:
            fetch([program("apt-get"), "download", *PACKAGES], directory)
            for package in directory.glob("*.deb"):
                fetch([program("dpkg-deb"), "-x", package, directory], directory)

        CACHE.mkdir(exist_ok=True)
        directory = kept("kcat", [], fill)
        libraries = {str(library.parent) for library in directory.glob("usr/lib/**/*.so*")}
        self.environment["LD_LIBRARY_PATH"] = ":".join(sorted(libraries))
        return str(directory / "usr" / "bin" / "kcat")

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start it with pipes."""
        pipe = subprocess.PIPE
        command = [self.path, *self._options, *arguments]
        return subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=self.environment
        )

    def run(self, *arguments: str, given: str = "") -> str:
        """Run it to its end and return what it printed."""
        with self.start(*arguments) as process:
            output, errors = process.communicate(given, SECONDS_MAX)
        assert process.returncode == 0, errors
        return output


class Member:
    """kcat in a consumer group, read while it runs."""

    def __init__(self, kcat: Kcat, steps: SixSteps, changed: threading.Condition) -> None:
        settings = {
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": "50",
            "reconnect.backoff.max.ms": "200",
        }
        options = [part for item in settings.items() for part in ("-X", "=".join(item))]
        self.process = kcat.start(
            *("-b", steps.address, "-E", "-u", "-J", *options),
            *("-G", steps.group, steps.group_topic),
        )
        self.assigned: list[int] = []
        self.records: list[dict[str, Any]] = []
        self._changed = changed
        self._threads = [threading.Thread(target=each) for each in (self._read_records, self._read_news)]
        for thread in self._threads:
            thread.start()

    def _read_records(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.records.append(_described(line))
                self._changed.notify()

    def _read_news(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if "rebalanced" in line:
                with self._changed:
                    given = line.partition(" assigned: ")[2]
                    self.assigned = [int(number) for number in re.findall(r"\[(\d+)\]", given)]
                    self._changed.notify()

    def stop(self) -> None:
        """Have it leave the group."""
        self.process.send_signal(signal.SIGTERM)
        for thread in self._threads:
            thread.join(SECONDS_MAX)
        with self.process:
            pass


def _have_read(members: Sequence[Member], count: int) -> bool:
    return sum(len(member.records) for member in members) >= count


def seen_by_kcat(kcat: Kcat, steps: SixSteps) -> Generator[dict[str, Any]]:
    """Do one thing after the other, and yield what was seen of each."""
    broker = ("-b", steps.address)
    partitions: list[Any] = []
    while not partitions:
        # Kafka has it made when it is asked for, but does not wait for that.
        (topic,) = json.loads(kcat.run(*broker, "-L", "-J", "-t", steps.topic))["topics"]
        partitions = topic["partitions"]
    yield {"partitions": len(partitions)}

    for compression, part in steps.parts:
        _send(kcat, steps, part, "-X", "acks=all", "-z", compression)
    yield {}
    _send(kcat, steps, steps.idempotent, "-X", "enable.idempotence=true")
    yield {}

    middle = steps.middle()
    starts = {
        "earliest": ("-o", "beginning"),
        "offset": ("-p", str(middle["partition"]), "-o", str(middle["offset"])),
        "time": ("-o", f"s@{middle['time']}"),
    }
    read = {
        name: kcat.run(*broker, "-C", "-e", "-J", "-t", steps.topic, *start) for name, start in starts.items()
    }
    yield {name: [_described(line) for line in text.splitlines()] for name, text in read.items()}
    yield from _shared(kcat, steps)


def _send(kcat: Kcat, steps: SixSteps, part: Sequence[tuple[int, Record]], *options: str) -> None:
    """Send the records of each partition: all of one have the same headers, which are given once."""
    for partition in range(PARTITIONS):
        records = [record for where, record in part if where == partition]
        headers = [option for name, value in records[0].headers for option in ("-H", f"{name}={value}")]
        lines = "".join(f"{record.key or ''}\t{record.value or ''}\n" for record in records)
        place = ("-P", "-b", steps.address, "-t", steps.topic, "-p", str(partition))
        kcat.run(*place, "-Z", "-K", "\t", *headers, *options, given=lines)


def _described(line: str) -> dict[str, Any]:
    one = json.loads(line)
    headers = one.get("headers", [])
    return {
        "partition": one["partition"],
        "offset": one["offset"],
        "key": one["key"],
        "value": one["payload"],
        "headers": list(zip(headers[::2], headers[1::2], strict=True)),
        "timestamp": one["ts"],
    }


def _shared(kcat: Kcat, steps: SixSteps) -> Generator[dict[str, Any]]:
    changed = threading.Condition()

    def wait_for(condition: Callable[[], bool]) -> None:
        fulfilled = changed.wait_for(condition, SECONDS_MAX)
        assert fulfilled

    with ExitStack() as stack:
        members = []
        for _ in range(2):
            members.append(Member(kcat, steps, changed))
            stack.callback(members[-1].stop)
        with changed:
            wait_for(lambda: all(member.assigned for member in members))
            assigned = [member.assigned for member in members]
        yield {"assigned": assigned}
        for count in GROUP_COUNTS:
            with changed:
                wait_for(functools.partial(_have_read, members, count))
                records = [member.records for member in members]
                for member in members:
                    member.records = []
            # It commits behind the back of whoever reads its output, but it does so soon.
            end = max(one["offset"] for member in records for one in member) + 1
            while steps.committed() != [end] * PARTITIONS:
                pass
            yield {"records": records}
