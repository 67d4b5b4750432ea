"""Each way a command can fail: one sentence that says what to do, and the exit status for it."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.commands import refused, run, said, started
from support.patience import SECONDS_MAX
from support.serving import serving

import cordwood
from cordwood import Broker
from cordwood.cli.backends import place

#: Every command that reads a data directory, and every one that changes it.
READING = [
    ["topic", "list"],
    ["topic", "describe", "orders"],
    ["topic", "delete", "orders", "--dry-run"],
    ["consume", "-t", "orders", "-e"],
    ["group", "list"],
    ["group", "describe", "billing"],
    ["group", "delete", "billing", "--dry-run"],
]
CHANGING = [
    ["topic", "alter", "orders", "--partitions", "2"],
    ["topic", "delete", "orders"],
    ["consume", "-t", "orders", "-G", "billing"],
    ["group", "reset", "billing", "--to", "end"],
    ["group", "delete", "billing"],
]
CREATING = [["topic", "create", "orders"], ["produce", "-t", "orders"]]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with cordwood.open(tmp_path / "data") as log:
        for i in range(3):
            log.topic("orders").append(b"value %d" % i)
    return tmp_path / "data"


@pytest.mark.parametrize("command", [*READING, *CHANGING, ["doctor"]], ids=" ".join)
def test_no_such_directory(command: list[str], tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert refused(*command, "--data", missing) == (
        f"there is no directory {missing}; give a data directory with --data or in CORDWOOD_DATA_DIR, "
        "or create one with cordwood topic create"
    )
    assert not missing.exists()


def test_no_such_directory_for_verify(tmp_path: Path) -> None:
    assert refused("verify", tmp_path / "missing") == (
        f"{tmp_path / 'missing'} is not a data directory: it has neither meta/ nor topics/; "
        "give one as DIR, with --data or in CORDWOOD_DATA_DIR."
    )


@pytest.mark.parametrize("command", [*READING, *CHANGING, ["doctor"]], ids=" ".join)
def test_an_empty_directory_is_not_a_data_directory(command: list[str], tmp_path: Path) -> None:
    assert refused(*command, "--data", tmp_path) == (
        f"{tmp_path} is not a data directory; give a data directory with --data or in CORDWOOD_DATA_DIR"
    )
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("command", [*READING, *CHANGING, *CREATING, ["doctor"], ["serve"]], ids=" ".join)
def test_a_directory_of_something_else_is_left_alone(command: list[str], tmp_path: Path) -> None:
    tmp_path.joinpath("thesis.txt").write_text("years of work")
    assert refused(*command, "--data", tmp_path) == (
        f"{tmp_path} is neither empty nor a data directory: it holds thesis.txt; name another directory"
    )
    assert os.listdir(tmp_path) == ["thesis.txt"]


@pytest.mark.parametrize("command", [*CHANGING, *CREATING], ids=" ".join)
def test_locked_by_a_writer_that_does_not_listen(
    command: list[str], data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, "LOCKED_SECONDS", 0.05)
    with cordwood.open(data):
        assert refused(*command, "--data", data) == (
            f"{data}/meta/lock is locked by another writer: pid {os.getpid()} on {socket.gethostname()}; "
            "wait until it ends, or stop it"
        )


def test_serve_of_a_directory_that_a_server_has_names_it(data: Path) -> None:
    with Broker(data) as broker:
        sentence = refused("serve", "--data", data, "--listen", "localhost:0")
        assert sentence.startswith(f"{data}/meta/lock is locked by another writer: pid {os.getpid()} on ")
        address = broker.bootstrap
        assert sentence.endswith(
            f"listening on {address}; use that process with --bootstrap {address}, or stop it first"
        )


@pytest.fixture(params=["files", "broker"])
def where(request: pytest.FixtureRequest, data: Path) -> Iterator[list[object]]:
    if request.param == "files":
        yield ["--data", data]
        return
    with Broker(data) as broker:
        yield ["--bootstrap", broker.bootstrap]


def test_unknown_topic_and_partition(where: list[object]) -> None:
    for command in (["consume", "-e", "-t"], ["topic", "describe"], ["topic", "delete"]):
        sentence = "there is no topic nowhere; cordwood topic list shows the existing topics"
        assert refused(*command, "nowhere", *where) == sentence
    assert refused("consume", "-e", "-t", "nowhere", "-G", "billing", *where) == sentence
    assert (
        refused("consume", "-e", "-t", "orders", "-p", 7, *where)
        == "topic orders has partitions 0 to 0, not 7"
    )
    # Asking for a topic must not make it.
    assert "nowhere" not in said("topic", "list", *where)


def test_unknown_partition_to_produce_to(data: Path) -> None:
    sentence = refused("produce", "-t", "orders", "-p", 7, "--data", data, stdin=b"x\n")
    assert sentence == "topic orders has partitions 0 to 0, not 7"


def test_unknown_partition_to_produce_to_on_a_broker(data: Path) -> None:
    with Broker(data):
        sentence = refused("produce", "-t", "orders", "-p", 7, "--data", data, "--timeout", 1, stdin=b"x\n")
    assert "did not take a record: " in sentence
    assert "partition" in sentence


def test_wrong_offset(where: list[object]) -> None:
    assert refused("consume", "-t", "orders", "-o", 4, "-e", *where) == (
        "partition 0 of topic orders: offset 4 is not within 0 and 3, its first offset and its end; "
        "use one of these, beginning, end, or -N for the last N"
    )


def test_port_in_use(tmp_path: Path) -> None:
    with Broker() as broker:
        port = broker.bootstrap.rpartition(":")[2]
        sentence = refused("serve", "--data", tmp_path / "data", "--listen", f"localhost:{port}")
    assert sentence == (
        f"cannot listen on localhost:{port}: Address already in use"
        "; choose another with --listen (port 0 means any free port)"
    )
    assert not (tmp_path / "data").exists()


def test_corrupt_segment(data: Path) -> None:
    (segment,) = data.glob("topics/orders/0/segments/*.log")
    content = bytearray(segment.read_bytes())
    content[-1] ^= 1
    segment.write_bytes(content)
    frame = len(content) // 3
    sentence = refused("consume", "-t", "orders", "-o", 2, "-e", "--data", data, code=4)
    assert sentence.startswith(f"{segment} at byte {2 * frame}: CRC-32C of the batch: expected 0x")
    assert sentence.endswith(
        "; offsets from 2 are refused, reading can go on at 3 (with -o 3); cordwood verify reports all damage"
    )
    assert run("verify", data).exit_code == 4
    assert refused("segment", "dump", segment, code=4).startswith(
        f"{segment} at byte {2 * frame + 17}: CRC-32C"
    )


def test_damaged_metadata(data: Path) -> None:
    (state,) = data.glob("topics/orders/0/partition.json")
    state.write_bytes(state.read_bytes().replace(b"orders", b"0rders"))
    sentence = refused("consume", "-t", "orders", "-e", "--data", data, code=4)
    assert sentence.startswith(f"{state}: checksum is ")
    assert sentence.endswith("; cordwood verify reports all damage")
    # One damaged topic does not hide the others, nor that it is damaged.
    assert said("topic", "list", "--data", data).splitlines()[1].split() == ["orders", "1", "damaged"]
    said("topic", "create", "sound", "--data", data)
    with Broker(data) as broker:
        lines = said("topic", "list", "--bootstrap", broker.bootstrap).splitlines()
    assert [line.split() for line in lines[1:]] == [["orders", "1", "damaged"], ["sound", "1", "0"]]


def test_no_confluent_kafka(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    sentence = (
        "talking to a broker needs confluent-kafka, which is not installed: pip install confluent-kafka"
    )
    assert refused("topic", "list", "--bootstrap", "localhost:9092") == sentence
    with Broker(data):
        assert refused("produce", "-t", "orders", "--data", data, stdin=b"x\n") == sentence
        # Reading files takes no client, also beside a server.
        assert len(said("consume", "-t", "orders", "-e", "--data", data).splitlines()) == 3


@pytest.mark.parametrize(
    "command", [["topic", "list"], ["consume", "-t", "x", "-e"], ["produce", "-t", "x"], ["group", "list"]]
)
def test_a_broker_that_does_not_answer(command: list[str]) -> None:
    """Nobody listens, and somebody listens who says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        addresses = ["127.0.0.1:1", f"127.0.0.1:{port}"]
        for address in addresses:
            assert refused(*command, "--bootstrap", address, "--timeout", 0.3, stdin=b"") == (
                f"no broker answers at {address} within 0.3 s: check the address, "
                "or start one with cordwood serve"
            )


def test_a_client_setting_that_there_is_not() -> None:
    sentence = refused("topic", "list", "--bootstrap", "localhost:9092", "-X", "no.such=1")
    assert sentence == 'the Kafka client refuses a setting: No such configuration property: "no.such"'


@pytest.mark.parametrize("format_", ["%q", "%s %", "%"])
def test_bad_format_letter(format_: str, data: Path) -> None:
    sentence = refused("consume", "-t", "orders", "-e", "-f", format_, "--data", data, code=2)
    assert sentence.startswith(
        f"Invalid value for '-f' / '--format': %{format_.rpartition('%')[2]} is not a letter"
    )
    assert sentence.endswith(
        "expected %t topic, %p partition, %o offset, %k key, %s value, %T timestamp, "
        "%h headers, %K and %S lengths, or %%."
    )


@pytest.mark.parametrize("offset", ["", "first", "1.5", "--1", "s@", "s@noon", "+3", "٣"])
def test_bad_offset(offset: str, data: Path) -> None:
    assert refused("consume", "-t", "orders", "-e", "-o", offset, "--data", data, code=2) == (
        f"Invalid value for '-o' / '--offset': {offset}: expected beginning, end, N (an offset), "
        "-N (the last N) or s@MS (a time in milliseconds)."
    )


def test_other_usage_errors(data: Path) -> None:
    assert "expected at least one character" in refused(
        "produce", "-t", "x", "-K", "", "--data", data, code=2
    )
    assert "expected NAME=VALUE" in refused("produce", "-t", "x", "-H", "=v", "--data", data, code=2)
    assert run("consume", "--data", data).exit_code == 2
    assert run("consume", "-t", "x", "-c", 0).exit_code == 2


@pytest.mark.parametrize("command", [*READING, *CHANGING, *CREATING, ["doctor"]], ids=" ".join)
def test_a_file_is_no_directory(command: list[str], tmp_path: Path) -> None:
    path = tmp_path / "thesis.txt"
    path.write_text("years of work")
    sentence = refused(*command, "--data", path)
    assert str(path) in sentence
    assert path.read_text() == "years of work"


def test_a_live_server_beside(tmp_path: Path) -> None:
    """The real command in a process of its own: reads beside the server, writes through it, ends with it."""
    with serving(tmp_path / "data") as server:
        where = ["--data", tmp_path / "data"]
        writer = started("produce", "-t", "orders", *where)
        assert writer.communicate(b"one\ntwo\n", timeout=SECONDS_MAX) == (b"", b"")
        reader = started("consume", "-t", "orders", "-e", *where)
        assert reader.communicate(timeout=SECONDS_MAX) == (b"one\ntwo\n", b"")
        assert (writer.returncode, reader.returncode) == (0, 0)
        assert said("topic", "list", *where) == said("topic", "list", "--bootstrap", server.bootstrap)
        server.kill()
    # Whoever takes over recovers; what was acknowledged is there.
    said("produce", "-t", "orders", *where, stdin=b"three\n")
    assert said("consume", "-t", "orders", "-e", *where) == "one\ntwo\nthree\n"
    assert run("verify", *where).exit_code == 0
