"""``cordwood mirror``: what it prints, how it ends, and that kill -9 at any moment costs nothing."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from support.asking import Asking
from support.commands import refused, run, said, started
from support.mirroring import opened, stored
from support.patience import SECONDS_MAX, until
from support.seeds import seed_or

import cordwood
from cordwood.disk import PosixFiles
from cordwood.formats import batch
from cordwood.server import Broker


@pytest.fixture
def source() -> Iterator[Broker]:
    with Broker() as broker, Asking(broker.bootstrap) as asking:
        asking.create("orders", 2)
        asking.create("others")
        send(broker, "orders", 20)
        yield broker


def send(broker: Broker, topic: str, count: int, size: int = 20, **settings: Any) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0, **settings})
    for i in range(count):
        producer.produce(topic, b"%d" % i * size, b"%d" % (i % 7))
        producer.poll(0)
    assert producer.flush(60) == 0


def test_the_report_counts_and_says_what_is_not_kept(source: Broker, tmp_path: Path) -> None:
    mirror = ("mirror", "--from", source.bootstrap, "--data", tmp_path / "data")
    report = json.loads(said(*mirror, "-t", "ord*", "--groups", "*", "--verify", "--json"))
    assert (report["whole"], report["failures"], report["groups"]) == (True, [], [])
    (topic,) = report["topics"]
    assert (topic["topic"], topic["created"], len(topic["partitions"])) == ("orders", True, 2)
    assert sum(each["records"] for each in topic["partitions"]) == 20
    assert report["check"]["differences"] == []
    lines = said(*mirror, "--exclude", "oth*").splitlines()
    assert lines[0].split() == [
        "topic",
        "partition",
        "start",
        "end",
        "source",
        "end",
        "batches",
        "records",
        "open",
        "transactions",
    ]
    assert lines[-1] == f"mirrored 0 records, 0 bytes, of 1 topic from {source.bootstrap}"


def test_failures_are_sentences_and_the_exit_status_says_so(source: Broker, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with cordwood.open(data) as log:
        log.topic("orders").append(b"x")
    mirror = ("mirror", "--from", source.bootstrap, "--data", data)
    assert refused(*mirror).startswith("orders: the topic of this name here is not a mirror of it")
    result = run(*mirror, "-t", "orders", "-t", "nope")
    assert result.exit_code == 1
    *lines, last = result.stderr.splitlines()
    assert [line.split(": ")[1] for line in lines] == ["nope", "orders"]
    assert last == "Error: 2 topics or partitions were not mirrored"
    other = ("--data", tmp_path / "other")
    wrong = refused("mirror", "--from", "localhost:1", *other, "--timeout", "0.2")
    assert wrong.startswith("localhost:1 did not answer: ")
    assert "HOST:PORT" in refused("mirror", "--from", "localhost", *other, "--timeout", "0.2")
    setting = "cordwood.format=rustlog"
    wrong = refused("mirror", "--from", source.bootstrap, *other, "-t", "orders", "--topic-config", setting)
    assert "cordwood.format must be batch" in wrong
    assert run("mirror", *other).exit_code == 2


def test_a_difference_is_exit_status_3(source: Broker, tmp_path: Path) -> None:
    """A careful forger changed the first record, its checksum and nothing else."""
    data, files = tmp_path / "data", PosixFiles()
    mirror = ("mirror", "--from", source.bootstrap, "--data", data, "-t", "others")
    for _ in range(5):
        send(source, "others", 3)
    said(*mirror)
    first, *rest = stored(files, "others", 0, str(data))
    assert len(rest) >= 4
    forged = bytearray(first)
    forged[-2] ^= 1
    batch.seal(forged)
    with contextlib.closing(opened(files, str(data))) as directory:
        log = directory.partitions.find_own("others", 0)
        assert log is not None
        log.truncate(0)
        for each in (forged, *map(bytearray, rest)):
            log.append_kept(each)
        log.commit()
    said(*mirror)
    result = run(*mirror, "--verify")
    assert (result.exit_code, result.stderr) == (3, "")
    assert "different: others-0: the record at offset " in result.stdout
    assert "1 partition different" in result.stdout


def test_a_directory_that_a_server_holds_is_not_mirrored_into(source: Broker, tmp_path: Path) -> None:
    with Broker(str(tmp_path / "data")) as here:
        sentence = refused("mirror", "--from", source.bootstrap, "--data", tmp_path / "data")
        assert here.bootstrap in sentence
    assert sentence.endswith("stop it first: a mirror needs the directory exclusively")


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_source_with_tls_and_sasl_is_read_as_other_commands_read_it(tmp_path: Path, mechanism: str) -> None:
    with Broker(tls=True, users={"anna": "secret"}) as source:
        login = {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(source.ca_path),
            "sasl.mechanism": mechanism,
            "sasl.username": "anna",
            "sasl.password": "secret",
        }
        send(source, "orders", 5, 20, **login)
        file = tmp_path / "client.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in login.items()))
        mirror = ("mirror", "--from", source.bootstrap, "--data", tmp_path / "data", "--config", file)
        assert "mirrored 5 records" in said(*mirror, "--verify", "--groups", "*")
        wrong = refused(*mirror, "-X", "sasl.password=other", "--timeout", "1")
        assert "does not let the user in" in wrong
        assert "other" not in wrong
        untrusted = refused(*mirror, "-X", "ssl.ca.location=probe", "--timeout", "1")
        assert "is not the broker that was meant" in untrusted


def test_kill_9_at_any_moment_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    """The mirror is started again and again, and killed while it copies; then it has what the source has."""
    seed = seed_or(5)
    print("seed", seed)
    chance = random.Random(seed)
    with Broker() as source, Asking(source.bootstrap) as asking:
        asking.create("orders", 2, segment_bytes="200000")
        settings = {"enable.idempotence": True, "batch.num.messages": 50}
        send(source, "orders", 20_000, 50, **settings)
        data, command = tmp_path / "data", ("mirror", "--from", source.bootstrap, "--data", tmp_path / "data")
        grown = []
        for _ in range(4):
            process = started(*command)
            least = chance.randrange(1, 400_000)
            wait_for(process, data, least)
            process.kill()
            process.communicate(timeout=SECONDS_MAX)
            grown.append(size(data))
        print("bytes after each kill", grown)
        report = json.loads(said(*command, "--verify", "--json"))
        assert report["whole"]
        assert sum(each["end"] for each in report["topics"][0]["partitions"]) == 20_000
        assert report["check"]["records"] == 20_000
    assert "sound" in said("verify", "--data", data)


def wait_for(process: subprocess.Popen[bytes], data: Path, least: int) -> None:
    """Wait until there are *least* bytes of segments, or the process has ended."""
    until(lambda: process.poll() is not None or size(data) >= least, "bytes")


def size(data: Path) -> int:
    """Return the bytes of all segments."""
    found = 0
    for path in data.glob("topics/*/*/segments/*.log"):
        try:
            found += path.stat().st_size
        except FileNotFoundError:
            continue
    return found


def test_following_ends_cleanly_at_sigterm_with_everything_synced(source: Broker, tmp_path: Path) -> None:
    data = tmp_path / "data"
    process = started("mirror", "--from", source.bootstrap, "--data", data, "--follow", "-t", "orders")
    try:
        until(lambda: size(data) > 0, "the first batches")
        before = size(data)
        send(source, "orders", 30)
        until(lambda: size(data) > before, "new batches")
        process.send_signal(signal.SIGTERM)
        printed, errors = process.communicate(timeout=SECONDS_MAX)
    except BaseException:
        process.kill()
        process.communicate()
        raise
    assert (process.returncode, errors) == (0, b"")
    assert b"of 1 topic from" in printed
    # Closed cleanly: the next open has nothing to recover.
    assert stored(PosixFiles(), "orders", 0, str(data))


def test_ctrl_c_is_130_and_what_was_copied_stays(source: Broker, tmp_path: Path) -> None:
    send(source, "others", 2000, 1000)
    data = tmp_path / "data"
    process = started("mirror", "--from", source.bootstrap, "--data", data, "--verify", "-t", "others")
    try:
        until(lambda: size(data) > 0 or process.poll() is not None, "the first batches")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=SECONDS_MAX)
    except BaseException:
        process.kill()
        process.communicate()
        raise
    assert process.returncode in (0, 130)
    assert "0 partitions different" in said(
        "mirror", "--from", source.bootstrap, "--data", data, "--verify", "-t", "others"
    )
