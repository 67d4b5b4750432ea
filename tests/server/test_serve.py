"""The server as a command and as an object: how it starts, what it says, how it ends."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from broker.nodes import batch_of, values_in
from click.testing import CliRunner, Result
from support.asking import Asking
from support.clocks import HookedFiles
from support.patience import SECONDS_MAX
from support.serving import RawClient, serving

import cordwood
from cordwood.cli import main
from cordwood.disk.memory import MemoryFiles
from cordwood.disk.posix import PosixFiles
from cordwood.errors import ConfigError, DirectoryLocked, InvalidSetting, ListenFailed, UnknownSetting
from cordwood.formats.batch import encode_records
from cordwood.host import Host
from cordwood.protocol.apis import ApiKey, encode_request
from cordwood.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from cordwood.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponseTopic
from cordwood.protocol.messages.produce import ProducePartition, ProduceRequest, ProduceTopic
from cordwood.protocol.wire import NULL_ID
from cordwood.server import server as server_module
from cordwood.server.broker import Broker
from cordwood.storage.chain.chains import kept_chain

COMMAND = [sys.executable, "-m", "cordwood.cli", "serve"]
PRODUCE_VERSION, FETCH_VERSION = 9, 12


# --- Asking -----------------------------------------------------------------------------------------


def produce_request(value: bytes, topic: str = "orders", acks: int = -1) -> ProduceRequest:
    partition = ProducePartition(0, batch_of(value))
    return ProduceRequest(None, acks, 1000, [ProduceTopic(topic, NULL_ID, [partition])])


def fetch_request(offset: int, max_wait_ms: int, topic: str = "orders") -> FetchRequest:
    wanted = FetchTopic(topic, NULL_ID, [FetchPartition(0, fetch_offset=offset, max_bytes=1 << 20)])
    return FetchRequest(-1, max_wait_ms, 1, 1 << 20, 0, 0, -1, [wanted], [], "")


def described(client: RawClient, topic: str = "orders") -> MetadataResponseTopic:
    """Ask for a topic, which makes it."""
    asked = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=True)
    (found,) = client.ask(ApiKey.METADATA, asked).topics
    assert isinstance(found, MetadataResponseTopic)
    assert found.error_code == 0
    return found


def produce(client: RawClient, value: bytes) -> int:
    """Append a record and return its offset."""
    answer = client.ask(ApiKey.PRODUCE, produce_request(value), PRODUCE_VERSION)
    (partition,) = answer.topics[0].partitions
    assert partition.error_code == 0, partition
    offset = partition.base_offset
    assert isinstance(offset, int)
    return offset


def fetched(client: RawClient, offset: int = 0) -> list[bytes]:
    """Return the values of all records from *offset* on."""
    answer = client.ask(ApiKey.FETCH, fetch_request(offset, 0), FETCH_VERSION)
    (partition,) = answer.topics[0].partitions
    assert partition.error_code == 0, partition
    return values_in([memoryview(bytes(records)) for records in partition.records])


def round_trip(address: str | tuple[str, int]) -> None:
    """Store a record and read it back."""
    with RawClient(address) as client:
        described(client)
        assert produce(client, b"value") == 0
        assert fetched(client) == [b"value"]


# --- As a command -----------------------------------------------------------------------------------


@contextmanager
def started(
    *arguments: str, command: list[str] = COMMAND, **options: object
) -> Iterator[subprocess.Popen[str]]:
    """Run the command; it is ended with the context, however that ends."""
    process: subprocess.Popen[str] = subprocess.Popen(
        [*command, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,  # type: ignore[call-overload]
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def address_in(process: subprocess.Popen[str]) -> str:
    """Wait for the line that says that clients can connect, and return the address in it."""
    assert process.stdout is not None
    line = process.stdout.readline()
    match = re.fullmatch(r"cordwood: ready on (127\.0\.0\.1:[0-9]+)\n", line)
    assert match, line + process.communicate(timeout=SECONDS_MAX)[1]
    return match[1]


def run(*arguments: str, environment: Mapping[str, str | None] | None = None) -> Result:
    """Run ``cordwood serve`` here, where it must fail before it serves."""
    return CliRunner().invoke(
        main, ["serve", *arguments], env={"CORDWOOD_DATA_DIR": None, **(environment or {})}
    )


def refused(*arguments: str) -> str:
    """Return the one sentence with which the command refuses."""
    result = run(*arguments)
    assert result.exit_code == 1, result.output
    assert result.stdout == ""
    match = re.fullmatch(r"Error: (.+)\n", result.stderr)
    assert match, result.stderr
    return match[1]


def test_ready_is_said_in_one_line_when_clients_can_connect_and_nothing_else_is(tmp_path: Path) -> None:
    with started("--data", str(tmp_path / "data"), "--listen", "localhost:0") as process:
        round_trip(address_in(process))
        process.send_signal(signal.SIGTERM)
        rest, errors = process.communicate(timeout=SECONDS_MAX)
        assert (rest, errors, process.returncode) == ("", "", 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_requests_answered_and_everything_stored(
    tmp_path: Path, number: signal.Signals
) -> None:
    with serving(tmp_path) as server, RawClient(server.address) as client:
        described(client)
        # In one piece: when the first is answered, the second has come, and waits for more records.
        requests = [
            encode_request(ApiKey.PRODUCE, PRODUCE_VERSION, 1, "c", produce_request(b"value")),
            encode_request(ApiKey.FETCH, FETCH_VERSION, 2, "c", fetch_request(1, 60_000)),
        ]
        client.socket.sendall(b"".join(part for request in requests for part in request))
        assert client.receive(ApiKey.PRODUCE, PRODUCE_VERSION).topics[0].partitions[0].error_code == 0
        server.process.send_signal(number)
        waiting = client.receive(ApiKey.FETCH, FETCH_VERSION)
        assert waiting.topics[0].partitions[0].error_code == 0
        assert client.is_closed()
        _, errors = server.process.communicate(timeout=SECONDS_MAX)
        assert (server.process.returncode, errors) == (0, "")
    assert tmp_path.joinpath("meta", "clean").exists()
    with cordwood.open(tmp_path) as log:
        assert [record.value for record in log.topic("orders").read()] == [b"value"]


def test_a_second_server_on_the_directory_is_told_who_has_it(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        holder = f"pid {server.process.pid} on {socket.gethostname()}, listening on {server.bootstrap}"
        sentence = refused("--data", str(tmp_path), "--listen", "localhost:0")
        assert sentence == (
            f"{tmp_path}/meta/lock is locked by another writer: {holder}"
            f"; use that process with --bootstrap {server.bootstrap}, or stop it first"
        )
        round_trip(server.address)


def test_a_port_in_use_is_said_and_leaves_the_directory_to_others(tmp_path: Path) -> None:
    cordwood.open(tmp_path).close()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with started("--data", str(tmp_path), "--listen", f"localhost:{port}") as process:
            printed, errors = process.communicate(timeout=SECONDS_MAX)
        assert process.returncode == 1
        assert printed == ""
        assert errors == (
            f"Error: cannot listen on localhost:{port}: Address already in use"
            "; choose another with --listen (port 0 means any free port)\n"
        )
    assert tmp_path.joinpath("meta", "clean").exists()
    cordwood.open(tmp_path).close()


def test_what_cannot_be_a_setting_is_refused_in_one_sentence(tmp_path: Path) -> None:
    here = ("--data", str(tmp_path / "data"))
    assert refused(*here, "-X", "nonsense") == "-X nonsense: expected KEY=VALUE"
    assert (
        refused(*here, "-X", "num.partition=3")
        == "unknown setting num.partition; did you mean num.partitions?"
    )
    assert refused(*here, "-X", "num.partitions=many").startswith(
        "num.partitions='many': expected a whole number"
    )
    assert refused(*here, "-X", "cordwood.sync=sometimes").startswith(
        "cordwood.sync='sometimes': expected each"
    )
    assert refused(*here, "--listen", "nowhere").startswith(
        "listeners='nowhere': expected a comma-separated list of PROTOCOL://HOST:PORT"
    )
    assert (
        refused(*here, "--listen", "SSL://:9093")
        == "ssl.keystore.location='': expected the PEM file with the server's private key and its "
        "certificates (listener SSL)"
    )
    assert refused(*here, "-X", "listeners=").startswith("listeners='': expected at least one HOST:PORT")
    assert not tmp_path.joinpath("data", "topics").exists()


def test_a_file_of_settings_that_is_wrong_is_refused_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("num.partitions=3\nbroker.rack=\\u12\n")
    assert refused("--config", str(file)).startswith("line 2: broker.rack: expected")
    file.write_text("num.partitons=3\n")
    assert refused("--config", str(file)) == "unknown setting num.partitons; did you mean num.partitions?"


def test_what_is_no_directory_of_ours_is_refused_and_left_alone(tmp_path: Path) -> None:
    tmp_path.joinpath("thesis.txt").write_text("years of work")
    assert "thesis.txt" in refused("--data", str(tmp_path))
    assert "thesis.txt" in refused("--data", str(tmp_path / "thesis.txt"))
    assert os.listdir(tmp_path) == ["thesis.txt"]


def test_a_command_line_that_makes_no_sense_is_usage(tmp_path: Path) -> None:
    for arguments in (["--config", str(tmp_path / "missing")], ["--no-such-option"], ["argument"], ["-X"]):
        result = run(*arguments)
        assert (result.exit_code, result.stdout) == (2, "")
        assert "Error: " in result.stderr


KAFKA_PROPERTIES = """\
# As Kafka 4 ships it, but for the port.
process.roles=broker,controller
node.id=7
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://localhost:0,CONTROLLER://localhost:9093
inter.broker.listener.name=PLAINTEXT
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL
num.network.threads=3
num.io.threads=8
socket.request.max.bytes=104857600
log.dirs={data}
num.partitions=3
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
log.retention.hours=168
log.segment.bytes=1073741824
"""


def test_the_properties_of_a_kafka_server_work_and_what_has_no_effect_is_said(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(KAFKA_PROPERTIES.format(data=tmp_path / "data"))
    with started("--config", str(file), "-X", "num.partitions=5") as process:
        with RawClient(address_in(process)) as client:
            topic = described(client)
            assert len(topic.partitions) == 5, "-X wins over the file"
            assert topic.partitions[0].leader_id == 7
            produce(client, b"value")
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=SECONDS_MAX)
        assert process.returncode == 0
    lines = errors.splitlines()
    assert "cordwood: num.io.threads is a setting of Kafka that Cordwood does not apply." in lines
    assert "cordwood: process.roles is a setting of Kafka that Cordwood does not apply." in lines
    for name in ("node.id", "listeners", "num.partitions", "log.dirs", "log.segment.bytes"):
        assert not any(f" {name} " in line for line in lines), name
    with cordwood.open(tmp_path / "data") as log:
        assert list(log.topics) == ["orders"]


@pytest.mark.parametrize("where", ["environment", "default"])
def test_the_directory_comes_from_the_environment_or_is_the_default(tmp_path: Path, where: str) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "CORDWOOD_DATA_DIR"}
    data = tmp_path / "data"
    if where == "environment":
        data = tmp_path / "elsewhere"
        environment["CORDWOOD_DATA_DIR"] = str(data)
    with started("--listen", "localhost:0", env=environment, cwd=tmp_path) as process:
        round_trip(address_in(process))
    assert data.joinpath("meta", "broker.id").exists()
    assert os.listdir(tmp_path) == [data.name]


WITHOUT = """
import sys
for name in {missing!r}:
    sys.modules[name] = None
from cordwood.cli import main
main(sys.argv[1:])
"""


def test_the_server_needs_neither_uvloop_nor_the_libraries_of_columns(tmp_path: Path) -> None:
    """Importing any of them fails here, and produce, fetch and the rest work all the same."""
    script = WITHOUT.format(missing=["uvloop", "numpy", "pyarrow"])
    command = [sys.executable, "-c", script, "serve"]
    with started("--data", str(tmp_path), "--listen", "localhost:0", command=command) as process:
        round_trip(address_in(process))
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=SECONDS_MAX)
        assert (process.returncode, errors) == (0, "")


@pytest.mark.skipif(sys.platform != "linux", reason="/proc shows what a process has loaded")
def test_the_server_loads_neither_numpy_nor_pyarrow(tmp_path: Path) -> None:
    """They are most of the time and memory of a start, and nothing it does needs them."""
    with serving(tmp_path) as server:
        round_trip(server.address)
        loaded = Path(f"/proc/{server.process.pid}/maps").read_text()
        assert "_decode" in loaded or "site-packages" in loaded, "the maps show libraries"
        assert not re.findall(r"\S*(?:numpy|pyarrow|libarrow)\S*", loaded)


# --- As an object -----------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["nothing", "uvloop"])
def test_a_broker_in_memory_serves_on_either_loop(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    loop = Host().new_event_loop()
    assert isinstance(loop, asyncio.SelectorEventLoop) == (missing == "uvloop")
    loop.close()
    with cordwood.Broker() as broker:
        round_trip(broker.bootstrap)
        assert broker.failure is None


def test_a_broker_on_a_directory_keeps_what_it_was_given(tmp_path: Path) -> None:
    with Broker(tmp_path / "data") as broker:
        round_trip(broker.bootstrap)
    assert tmp_path.joinpath("data", "meta", "clean").exists()
    with Broker(tmp_path / "data") as broker, RawClient(broker.bootstrap) as client:
        assert fetched(client) == [b"value"]


def test_settings_are_those_of_server_properties() -> None:
    with Broker(config={"num.partitions": "4"}) as broker, RawClient(broker.bootstrap) as client:
        assert len(described(client).partitions) == 4


def test_two_brokers_in_one_process_know_nothing_of_each_other() -> None:
    with Broker() as one, Broker() as two:
        assert one.bootstrap != two.bootstrap
        round_trip(one.bootstrap)
        with RawClient(two.bootstrap) as client:
            assert client.ask(ApiKey.METADATA, MetadataRequest(topics=None)).topics == []
        round_trip(two.bootstrap)


def test_closing_is_idempotent_from_any_thread_and_leaves_nothing_running() -> None:
    before = set(threading.enumerate())
    broker = Broker()
    round_trip(broker.bootstrap)
    with RawClient(broker.bootstrap) as connected:
        closers = [threading.Thread(target=broker.close) for _ in range(3)]
        for closer in closers:
            closer.start()
        for closer in closers:
            closer.join(SECONDS_MAX)
        broker.close()
        assert connected.is_closed()
    assert set(threading.enumerate()) <= before
    with pytest.raises(ConnectionRefusedError):
        RawClient(broker.bootstrap)


def test_a_request_that_takes_its_time_is_answered_before_the_end() -> None:
    files = HookedFiles(MemoryFiles())
    with Broker("/data", files=files) as broker, RawClient(broker.bootstrap) as client:
        described(client)
        produce(client, b"value")
        reached, release = threading.Event(), threading.Event()

        def hold(kind: str, path: str) -> None:
            if kind == "read":
                reached.set()
                assert release.wait(SECONDS_MAX)

        files.before = hold
        client.send(ApiKey.FETCH, FETCH_VERSION, fetch_request(0, 0))
        assert reached.wait(SECONDS_MAX)
        closing = threading.Thread(target=broker.close)
        closing.start()
        # Time enough, in turns of the loop, to close on a client whose answer is on its way.
        for _ in range(200):
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), broker._loop).result(SECONDS_MAX)
        release.set()
        answer = client.receive(ApiKey.FETCH, FETCH_VERSION)
        assert answer.topics[0].partitions[0].records
        closing.join(SECONDS_MAX)
        assert client.is_closed()


def test_a_client_that_does_not_read_holds_up_the_end_for_no_longer_than_is_granted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_module, "GRACE_SECONDS", 0.05)
    with Broker() as broker, RawClient(broker.bootstrap) as slow, RawClient(broker.bootstrap) as client:
        described(client)
        for _ in range(12):
            produce(client, bytes(1_000_000))
        request = fetch_request(0, 0)
        request.max_bytes = request.topics[0].partitions[0].max_bytes = 50 << 20
        for _ in range(3):
            slow.send(ApiKey.FETCH, FETCH_VERSION, request)
        # The first bytes of the answer are there, so the rest is on its way and goes no further.
        assert slow.socket.recv(4)
        broker.close()


def test_a_directory_that_another_broker_has_is_refused_by_name(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        holder = f"pid {os.getpid()} on .*, listening on {broker.bootstrap}"
        with pytest.raises(DirectoryLocked, match=holder):
            Broker(tmp_path)
        round_trip(broker.bootstrap)


def without_leaks(attempt: Callable[[], object], error: type[Exception]) -> None:
    """The attempt raises this, and leaves no thread behind."""
    before = set(threading.enumerate())
    with pytest.raises(error):
        attempt()
    assert set(threading.enumerate()) <= before


def test_a_port_that_is_taken_leaves_the_directory_unlocked(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        without_leaks(lambda: Broker(tmp_path, listen=listen), ListenFailed)
    with Broker(tmp_path) as broker:
        round_trip(broker.bootstrap)


@pytest.mark.parametrize(
    ("listen", "config", "error"),
    [
        ("nowhere", {}, InvalidSetting),
        ("localhost:70000", {}, InvalidSetting),
        ("localhost:0", {"num.partitions": "0"}, InvalidSetting),
        ("localhost:0", {"num.partition": "1"}, UnknownSetting),
    ],
)
def test_what_cannot_be_a_setting_is_refused_before_anything_is_made(
    tmp_path: Path, listen: str, config: dict[str, str], error: type[ConfigError]
) -> None:
    without_leaks(lambda: Broker(tmp_path / "data", listen=listen, config=config), error)
    assert os.listdir(tmp_path) == []


def test_topics_that_come_and_go_under_load_leave_a_server_that_says_nothing_and_ends_well(
    tmp_path: Path,
) -> None:
    """Any client's test suite creates and deletes topics while their chains are followed."""
    failures: list[BaseException] = []

    def come_and_go(client: Asking, number: int) -> None:
        try:
            for cycle in range(12):
                # Some come back under the name that they had.
                name = f"topic-{number}-{cycle % 3}"
                client.create(name)
                for _ in range(3):
                    assert (
                        client.produce(name, encode_records([(None, b"value")] * 20, 1_000)).error_code == 0
                    )
                assert client.delete(name) == 0
                del client.ids[name]
        except BaseException as error:
            failures.append(error)

    with ExitStack() as stack:
        server = stack.enter_context(serving(tmp_path))
        clients = [stack.enter_context(Asking(server.address)) for _ in range(3)]
        threads = [threading.Thread(target=come_and_go, args=(each, at)) for at, each in enumerate(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        clients[0].create("last")
        clients[0].produce("last", encode_records([(None, b"value")], 1_000))
        assert server.stop() == 0
        assert server.errors == ""
    with kept_chain(PosixFiles(), str(tmp_path / "topics" / "last" / "0")) as chain:
        assert chain is not None
        assert chain.head.size == 1


@pytest.mark.parametrize("option", ["--listen", "--metrics"])
def test_an_address_in_use_leaves_no_new_directory_behind(tmp_path: Path, option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        given = {"--listen": "127.0.0.1:0", "--metrics": "127.0.0.1:0", option: address}
        arguments = [word for pair in given.items() for word in pair]
        for data in (tmp_path / "new" / "data", tmp_path / "empty"):
            tmp_path.joinpath("empty").mkdir(exist_ok=True)
            done = subprocess.run(
                [*COMMAND, "--data", str(data), *arguments],
                capture_output=True,
                text=True,
                timeout=SECONDS_MAX,
            )
            assert done.returncode == 1
            assert done.stderr.startswith(f"Error: cannot listen on {address}: ")
            with pytest.raises(ListenFailed):
                cordwood.Broker(data, listen=address)
        assert [path.name for path in tmp_path.rglob("*")] == ["empty"]


def test_an_address_in_use_leaves_an_existing_directory_closed_cleanly(tmp_path: Path) -> None:
    with cordwood.open(tmp_path) as log:
        log.topic("orders").append(b"axe")
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ListenFailed):
        cordwood.Broker(tmp_path, listen=f"127.0.0.1:{taken.getsockname()[1]}")
    assert tmp_path.joinpath("meta", "clean").exists()
    with cordwood.Broker(tmp_path):
        pass
