"""The source and the sink on a real cluster: a master, two workers and a driver, all on loopback."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path

import pyspark
import pytest
from support.cluster_driver import ROWS
from support.killing import kill_session
from support.patience import Limit
from support.sinks import leftovers, surroundings, values_in

import cordwood
from cordwood.broker.partitioner import partition_for_key
from cordwood.disk.posix import PosixFiles
from cordwood.verify import verify_directory

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
#: Spark never speculates on the host where the first attempt runs.
HOSTS = ("127.0.0.1", "127.0.0.2")


@contextmanager
def daemon(home: Path, name: str, host: str, *arguments: str) -> Iterator[Path]:
    """Run a part of Spark's own cluster and give its output; end it, and all it started, in the end."""
    said = home / f"{name}.out"
    # Found by the JVM itself otherwise; the daemons need little.
    environment = surroundings() | {
        "SPARK_LOCAL_IP": host,
        "SPARK_DAEMON_MEMORY": "128m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "SPARK_LOG_DIR": str(home),
    }
    with said.open("w") as output:
        process = subprocess.Popen(
            [str(SPARK_CLASS), *arguments],
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=home,
            env=environment,
            start_new_session=True,
        )
    try:
        yield said
    finally:
        while kill_session(process.pid):
            process.poll()
            time.sleep(0.01)
        process.wait()


def wait_for(said: Path, words: str) -> None:
    """Wait until a daemon has said *words*."""
    limit = Limit()
    while words not in said.read_text():
        assert not limit.passed(), f"{said.name} does not say {words!r}: {said.read_text()[-2000:]}"
        time.sleep(0.05)


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """A cluster of two workers with a core each."""
    package = "org.apache.spark.deploy"
    with ExitStack() as stack:
        ports = ("--port", "0", "--webui-port", "0")
        ending = daemon(tmp_path, "master", HOSTS[0], f"{package}.master.Master", "--host", HOSTS[0], *ports)
        said = stack.enter_context(ending)
        wait_for(said, "I have been elected leader")
        found = re.search(r"Starting Spark master at (spark://\S+)", said.read_text())
        assert found is not None
        address = found[1]
        for number, host in enumerate(HOSTS):
            arguments = [
                "--host",
                host,
                "--port",
                "0",
                "--webui-port",
                "0",
                "--cores",
                "1",
                "--memory",
                "600m",
            ]
            arguments += ["--work-dir", str(tmp_path / f"work{number}"), address]
            name = f"worker{number}"
            said = stack.enter_context(daemon(tmp_path, name, host, f"{package}.worker.Worker", *arguments))
            wait_for(said, "Successfully registered with master")
        yield address


def test_a_cluster_reads_writes_runs_a_job_and_publishes_a_speculative_attempt_once(
    master: str, tmp_path: Path
) -> None:
    """The first attempt at a task is slow until a second one, on the other host, has staged as well."""
    data, attempts = tmp_path / "data", tmp_path / "attempts"
    attempts.mkdir()
    with cordwood.open(data) as log:
        log.topic("plain", 2)
        log.topic("out", 2)
    command = [sys.executable, "-m", "support.cluster_driver", master, str(data), str(attempts)]
    with (tmp_path / "driver.err").open("w") as errors:
        driver = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=tmp_path,
            env=surroundings(),
            start_new_session=True,
        )
    try:
        output, _ = driver.communicate()
    finally:
        while kill_session(driver.pid):
            driver.poll()
            time.sleep(0.01)
    assert driver.returncode == 0, (tmp_path / "driver.err").read_text()[-3000:]
    (line,) = (line for line in output.splitlines() if line.startswith("@"))
    found = json.loads(line[1:])
    assert found["read"] == list(range(ROWS))
    local = verify_directory(PosixFiles(), str(data), "plain")
    assert found["verified"] == json.loads(json.dumps(asdict(local)))
    assert local.records == ROWS
    staged = sorted(os.listdir(attempts))
    print(f"attempts that staged: {staged}")
    assert {"0-0", "0-1"} <= set(staged), "no second attempt ran"
    expected: list[list[bytes]] = [[], []]
    for number in range(ROWS):
        expected[partition_for_key(b"%d" % number, 2)].append(b"%d" % number)
    assert values_in(data, "plain") == expected
    assert values_in(data, "out") == expected
    # The attempt that lost may have staged after the commit; that stays until the query's next publication.
    assert len(leftovers(data)) <= 1
    assert verify_directory(PosixFiles(), str(data)).sound
