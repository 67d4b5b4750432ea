"""Kafka's own command-line tools against our server, and on our files."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from interop.kafka_jars import KAFKA_VERSION, MAIN_CLASSES, QUICK, java_command, run_tool
from interop.report import Report
from interop.toolbox import HERE
from support.clients import COMPRESSIONS, Confluent, Outgoing
from support.commands import said
from support.serving import ServerProcess, serving

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1200)]

Check = Callable[[str, str], AbstractContextManager[None]]
Tool = Callable[..., str]


@pytest.fixture
def check(report: Report) -> Check:
    """Report a check of a tool: its name, and what was done with it."""
    return lambda name, done: report.check("tools", name, KAFKA_VERSION, done)


@pytest.fixture
def tool(server: ServerProcess) -> Tool:
    """Run one of the tools against the server, and return what it printed."""

    def run(name: str, *arguments: str, given: str = "", address_first: bool = False) -> str:
        place = ("--bootstrap-server", server.bootstrap)
        # Tools with commands of their own take it before the command, others anywhere.
        ordered = (*place, *arguments) if address_first else (*arguments, *place)
        return run_tool(MAIN_CLASSES[name], *ordered, given=given)

    return run


def test_topics(tool: Tool, check: Check) -> None:
    with check("kafka-topics", "create"):
        tool("kafka-topics", "--create", "--topic", "t", "--partitions", "2", "--config", "segment.ms=5000")
    with check("kafka-topics", "list"):
        assert tool("kafka-topics", "--list").split() == ["t"]
    with check("kafka-topics", "alter"):
        tool("kafka-topics", "--alter", "--topic", "t", "--partitions", "4")
    with check("kafka-topics", "describe"):
        described = tool("kafka-topics", "--describe", "--topic", "t")
        assert re.search(r"PartitionCount: 4\s+ReplicationFactor: 1\s+Configs: segment.ms=5000", described)
        assert len(re.findall(r"Partition: \d\s+Leader: 0\s+Replicas: 0\s+Isr: 0", described)) == 4
    with check("kafka-topics", "delete"):
        tool("kafka-topics", "--delete", "--topic", "t")
        assert tool("kafka-topics", "--list").split() == []


def test_configs(tool: Tool, check: Check, server: ServerProcess) -> None:
    Confluent().create_topic(server.bootstrap, "t", 1)
    topic = ("--entity-type", "topics", "--entity-name", "t")
    with check("kafka-configs", "alter a topic"):
        tool("kafka-configs", *topic, "--alter", "--add-config", "max.message.bytes=2000,segment.ms=5000")
        tool("kafka-configs", *topic, "--alter", "--delete-config", "segment.ms")
    with check("kafka-configs", "describe a topic"):
        assert "max.message.bytes=2000 " in tool("kafka-configs", *topic, "--describe")
        everything = tool("kafka-configs", *topic, "--describe", "--all")
        assert re.search(r"segment.ms=3600000 .*DEFAULT_CONFIG", everything)
    with check("kafka-configs", "describe the brokers"):
        brokers = tool("kafka-configs", "--entity-type", "brokers", "--describe", "--all")
        assert "num.partitions=3 " in brokers


def test_quotas(tool: Tool, check: Check) -> None:
    """What Kafka itself prints for the same commands is compared in test_interop_client_quotas.py."""
    alice = ("--entity-type", "users", "--entity-name", "alice")
    every_client = ("--entity-type", "clients", "--entity-default")
    with check("kafka-configs", "add, list and remove quotas"):
        tool(
            "kafka-configs",
            *alice,
            "--alter",
            "--add-config",
            "producer_byte_rate=1024,consumer_byte_rate=2048",
        )
        tool("kafka-configs", *alice, *every_client, "--alter", "--add-config", "request_percentage=12.5")
        tool("kafka-configs", *alice, "--alter", "--delete-config", "consumer_byte_rate")
        assert "for user-principal 'alice' are producer_byte_rate=1024.0" in tool(
            "kafka-configs", "--entity-type", "users", "--describe"
        )
        assert "for user-principal 'alice', the default client-id are request_percentage=12.5" in tool(
            "kafka-configs", *alice, "--entity-type", "clients", "--describe"
        )


def test_consumer_groups(tool: Tool, check: Check, server: ServerProcess) -> None:
    _fill(server, "t", 10)
    group = ("--group", "g", "--topic", "t")
    tool("kafka-console-consumer", *group, "--from-beginning", "--max-messages", "10")
    with check("kafka-groups", "list"):
        assert re.search(r"^g +Classic +consumer", tool("kafka-groups", "--list"), re.MULTILINE)
    with check("kafka-consumer-groups", "list"):
        listed = tool("kafka-consumer-groups", "--list", "--state")
        assert re.search(r"^g +Empty", listed, re.MULTILINE)
    with check("kafka-consumer-groups", "describe"):
        described = tool("kafka-consumer-groups", "--describe", "--group", "g")
        assert re.search(r"^g +t +0 +10 +10 +0 ", described, re.MULTILINE)
    with check("kafka-consumer-groups", "reset offsets"):
        moved = tool("kafka-consumer-groups", "--reset-offsets", *group, "--shift-by", "-3", "--execute")
        assert re.search(r"^g +t +0 +7\b", moved, re.MULTILINE)
    with check("kafka-consumer-groups", "delete offsets"):
        tool("kafka-consumer-groups", "--delete-offsets", *group)
        assert " t " not in tool("kafka-consumer-groups", "--describe", "--group", "g")
    with check("kafka-consumer-groups", "delete"):
        tool("kafka-consumer-groups", "--delete", "--group", "g")
        assert tool("kafka-consumer-groups", "--list").split() == []


def test_what_is_asked_of_a_whole_cluster(tool: Tool, check: Check, server: ServerProcess) -> None:
    _fill(server, "t", 3)
    with check("kafka-features", "describe"):
        assert re.search(
            r"metadata.version\s.*FinalizedVersionLevel: 4.3-IV0",
            tool("kafka-features", "describe", address_first=True),
        )
    with check("kafka-metadata-quorum", "describe"):
        assert re.search(
            r"LeaderId:\s+0\n", tool("kafka-metadata-quorum", "describe", "--status", address_first=True)
        )
        replicas = tool("kafka-metadata-quorum", "describe", "--replication", address_first=True).splitlines()
        assert [row.split()[-1] for row in replicas[1:]] == ["Leader"]
    with check("kafka-leader-election", "of all partitions and of one"):
        election = ("kafka-leader-election", "--election-type", "preferred")
        tool(*election, "--all-topic-partitions")
        elected = tool(*election, "--topic", "t", "--partition", "0")
        assert "Valid replica already elected" in elected
    with check("kafka-reassign-partitions", "list"):
        assert "No partition reassignments found" in tool("kafka-reassign-partitions", "--list")
    with check("kafka-transactions", "list; describe producers; find hanging"):
        listed = tool("kafka-transactions", "list", address_first=True).splitlines()
        assert len(listed) == 1
        place = ("--topic", "t", "--partition", "0")
        known = tool("kafka-transactions", "describe-producers", *place, address_first=True).splitlines()
        assert [row.split()[3] for row in known[1:]] == ["2"]
        hanging = tool(
            "kafka-transactions", "find-hanging", "--broker-id", "0", address_first=True
        ).splitlines()
        assert len(hanging) == 1
    with check("kafka-configs", "describe users and clients"):
        for kind in ("users", "clients"):
            assert tool("kafka-configs", "--entity-type", kind, "--describe").strip() == ""


def test_users(tool: Tool, check: Check, server: ServerProcess) -> None:
    """Users that either tool makes are those of the other."""
    alice = ("--entity-type", "users", "--entity-name", "alice")
    with check("kafka-configs", "add, list and remove users"):
        password = "SCRAM-SHA-512=[password=correct-horse]"
        tool("kafka-configs", *alice, "--alter", "--add-config", password)
        place = ("--bootstrap", server.bootstrap)
        (found,) = json.loads(said("user", "list", "--json", *place))
        assert found == {"user": "alice", "mechanism": "SCRAM-SHA-512", "iterations": 4096}
        said("user", "add", "bela", "--password-file", "-", *place, stdin="correct-horse\n")
        listed = tool("kafka-configs", "--entity-type", "users", "--describe")
        assert "for user-principal 'alice' are SCRAM-SHA-512=iterations=4096" in listed
        assert len(re.findall("for user-principal 'bela'", listed)) == 1
        tool("kafka-configs", *alice, "--alter", "--delete-config", "SCRAM-SHA-512")
        said("user", "remove", "bela", *place)
        assert json.loads(said("user", "list", "--json", *place)) == []


#: Options of kafka-acls that our own command has too.
ACL_OPTIONS = (
    "--allow-principal User:alice --operation Read --operation DescribeConfigs --topic orders --topic other",
    "--deny-principal User:* --deny-host 10.0.0.1 --topic ord --resource-pattern-type prefixed",
    "--allow-principal User:al --allow-host 10.0.0.1 --producer --idempotent --topic t --transactional-id x",
    "--allow-principal User:bob --consumer --topic * --group g",
    "--allow-principal User:carol --operation All --cluster",
)


def test_acls(tool: Tool, check: Check, server: ServerProcess, tmp_path: Path) -> None:
    """The same options make the same ACLs as our own command's."""
    with check("kafka-acls", "told that there is no authorizer"):
        command = java_command(MAIN_CLASSES["kafka-acls"], ["--bootstrap-server", server.bootstrap, "--list"])
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert "SecurityDisabledException" in done.stdout + done.stderr
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with serving(tmp_path / "theirs", settings) as other:
        place = ("--bootstrap-server", other.bootstrap)

        def acls(*arguments: str) -> str:
            return run_tool(MAIN_CLASSES["kafka-acls"], *arguments, *place)

        with check("kafka-acls", "add"):
            for options in ACL_OPTIONS:
                acls("--add", *options.split())
                said("acl", "add", *options.split(), "--data", tmp_path / "ours")
            theirs = said("acl", "list", "--json", "--bootstrap", other.bootstrap)
            ours = said("acl", "list", "--json", "--data", tmp_path / "ours")
            assert _rules(theirs) == _rules(ours)
            assert len(_rules(ours)) == 15
        with check("kafka-acls", "list"):
            listed = acls("--list", "--topic", "orders", "--resource-pattern-type", "match")
            assert "operation=DESCRIBE_CONFIGS, permissionType=ALLOW" in listed
            assert "host=10.0.0.1, operation=ALL, permissionType=DENY" in listed
            assert len(re.findall("principal=", listed)) == 5
        with check("kafka-acls", "remove"):
            for options in ACL_OPTIONS:
                acls("--remove", "--force", *options.split())
            assert _rules(said("acl", "list", "--json", "--bootstrap", other.bootstrap)) == set()


def _rules(listed: str) -> set[tuple[str, ...]]:
    return {tuple(each.values()) for each in json.loads(listed)}


def test_a_java_consumer_fetches_in_a_session(check: Check, server: ServerProcess, tmp_path: Path) -> None:
    _fill(server, "t", 10)
    logging = tmp_path / "log4j2.properties"
    handler = "org.apache.kafka.clients.FetchSessionHandler"
    logging.write_text(
        (HERE / "java" / "log4j2.properties").read_text()
        + f"logger.sessions.name = {handler}\nlogger.sessions.level = debug\n"
    )
    arguments = ["--bootstrap-server", server.bootstrap, "--topic", "t", "--from-beginning"]
    command = java_command(
        MAIN_CLASSES["kafka-console-consumer"],
        [*arguments, "--max-messages", "10"],
        [*QUICK, f"-Dlog4j2.configurationFile={logging}"],
    )
    with check("kafka-console-consumer", "in a fetch session"):
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert len(done.stdout.splitlines()) == 10
        assert "created a new incremental fetch session" in done.stderr
        assert "Built incremental fetch" in done.stderr


def test_consoles(tool: Tool, check: Check) -> None:
    with check("kafka-console-producer", "keys, null values, compression"):
        tool(
            *("kafka-console-producer", "--topic", "t", "--compression-codec", "zstd"),
            *("--reader-property", "parse.key=true", "--reader-property", "null.marker=NULL"),
            given="a\t1\nb\tNULL\n",
        )
    with check("kafka-console-consumer", "from the beginning"):
        shown = tool(
            *("kafka-console-consumer", "--topic", "t", "--from-beginning", "--max-messages", "2"),
            *("--formatter-property", "print.key=true", "--formatter-property", "null.literal=NULL"),
        )
        assert sorted(shown.splitlines()) == ["a\t1", "b\tNULL"]


def test_perf_tests(tool: Tool, check: Check) -> None:
    """Every record arrives; how fast is for ``make bench`` to say."""
    counts = ("--topic", "t", "--num-records", "20000")
    with check("kafka-producer-perf-test", "20,000 records of 100 bytes"):
        sent = tool("kafka-producer-perf-test", *counts, "--record-size", "100", "--throughput", "-1")
        assert "20000 records sent" in sent
    with check("kafka-consumer-perf-test", "20,000 records of 100 bytes"):
        header, figures = tool("kafka-consumer-perf-test", *counts).splitlines()
        row = dict(zip(header.split(", "), figures.split(", "), strict=True))
        assert row["data.consumed.in.nMsg"] == "20000"
    with check("kafka-e2e-latency", "20 records"):
        sizes = ("--num-records", "20", "--record-size", "100")
        assert "Avg latency" in tool("kafka-e2e-latency", "--topic", "e", *sizes, "--producer-acks", "all")


def test_verifiable_clients(tool: Tool, check: Check) -> None:
    with check("kafka-verifiable-producer", "100 records"):
        lines = tool("kafka-verifiable-producer", "--topic", "t", "--max-messages", "100", "--acks", "-1")
        assert json.loads(lines.splitlines()[-1])["acked"] == 100
    with check("kafka-verifiable-consumer", "100 records"):
        options = ("--max-messages", "100", "--reset-policy", "earliest")
        lines = tool("kafka-verifiable-consumer", "--topic", "t", "--group-id", "g", *options)
        events = [json.loads(line) for line in lines.splitlines()]
        assert sum(event["count"] for event in events if event["name"] == "records_consumed") == 100
        assert any(event["name"] == "offsets_committed" and event["success"] for event in events)


def test_offsets_and_directories(tool: Tool, check: Check, server: ServerProcess, tmp_path: Path) -> None:
    _fill(server, "t", 10)
    offsets = ("kafka-get-offsets", "--topic", "t", "--time")
    with check("kafka-get-offsets", "earliest, latest, largest timestamp, a time"):
        assert tool(*offsets, "latest").split() == ["t:0:10"]
        assert tool(*offsets, "max-timestamp").split() == ["t:0:9"]
        assert tool(*offsets, "1004").split() == ["t:0:4"]
    with check("kafka-delete-records", "up to an offset"):
        asked = tmp_path / "delete.json"
        partitions = [{"topic": "t", "partition": 0, "offset": 6}]
        asked.write_text(json.dumps({"partitions": partitions, "version": 1}))
        deleted = tool("kafka-delete-records", "--offset-json-file", str(asked))
        assert "low_watermark: 6" in deleted
        assert tool(*offsets, "earliest").split() == ["t:0:6"]
    with check("kafka-log-dirs", "describe"):
        (listed,) = re.findall(r"^\{.*\}$", tool("kafka-log-dirs", "--describe"), re.MULTILINE)
        (directory,) = json.loads(listed)["brokers"][0]["logDirs"]
        assert Path(directory["logDir"]) == server.data
        assert {part["partition"] for part in directory["partitions"]} == {"t-0"}
    with check("kafka-broker-api-versions", "describe"):
        assert "Fetch(1): 4 to 18 [usable: 18]" in tool("kafka-broker-api-versions")
    with check("kafka-cluster", "the cluster's id"):
        assert re.match(r"Cluster ID: \S+", tool("kafka-cluster", "cluster-id"))


def test_sealed_segments_are_clean(check: Check, server: ServerProcess) -> None:
    """Kafka reads our files: every batch and every record of every compression, and the offsets of groups."""
    sizes = ("--num-records", "20000", "--record-size", "200", "--throughput", "-1")
    place = ("--topic", "t", "--bootstrap-server", server.bootstrap)
    smallest = ("--config", "segment.bytes=1048576", "--partitions", "1")
    run_tool(MAIN_CLASSES["kafka-topics"], "--create", *place, *smallest)
    for compression in COMPRESSIONS:
        codec = ("--command-property", f"compression.type={compression}")
        run_tool(MAIN_CLASSES["kafka-producer-perf-test"], *place, *sizes, *codec)
    partition = server.data / "topics" / "t" / "0"
    with check("kafka-dump-log", "sealed segments, every record of every compression"):
        sealed = json.loads((partition / "partition.json").read_text())["body"]["sealed"]
        assert len(sealed) >= 5
        files = {partition / "segments" / f"{one['base']:020}.log": one["next_offset"] for one in sealed}
        assert _check_dump(files) == set(COMPRESSIONS)
    with check("kafka-dump-log", "committed offsets of groups"):
        consumed = ("--group", "g", "--from-beginning", "--max-messages", "10")
        run_tool(MAIN_CLASSES["kafka-console-consumer"], *place, *consumed)
        server.stop()
        (path,) = (server.data / "topics" / "__consumer_offsets" / "0" / "segments").glob("*.log")
        dumped = run_tool(MAIN_CLASSES["kafka-dump-log"], "--offsets-decoder", "--files", str(path))
        assert '{"group":"g","topic":"t","partition":0}' in dumped
        assert '"protocolType":"consumer"' in dumped


def _check_dump(files: Mapping[Path, int]) -> set[str]:
    """Hold what Kafka says of segments to the offsets where they end; return the compressions in them."""
    names = ",".join(map(str, files))
    done = subprocess.run(
        java_command(MAIN_CLASSES["kafka-dump-log"], ["--deep-iteration", "--files", names]),
        capture_output=True,
        text=True,
        check=True,
    )
    # 4.3 says this of each segment that does not start at 0, Kafka's own too.
    complaints = [
        line
        for path in files
        if int(path.stem)
        for line in (f"Non-consecutive offsets in {path}", f"  -1 is followed by {int(path.stem)}")
    ]
    assert sorted(done.stderr.splitlines()) == sorted(complaints)
    batches = re.findall(r"compresscodec: (\w+) crc: \d+ isvalid: (\w+)", done.stdout)
    assert {valid for _, valid in batches} == {"true"}
    dumps = re.split(r"^Dumping (.*)\n", done.stdout, flags=re.MULTILINE)[1:]
    seen = dict(zip(map(Path, dumps[::2]), dumps[1::2], strict=True))
    assert seen.keys() == files.keys()
    for path, dump in seen.items():
        offsets = [int(offset) for offset in re.findall(r"^\| offset: (\d+) ", dump, re.MULTILINE)]
        assert offsets == list(range(int(path.stem), files[path]))
    return {codec for codec, _ in batches}


def _fill(server: ServerProcess, topic: str, count: int) -> None:
    """Make a topic of one partition whose records are a millisecond apart, the first at 1000."""
    Confluent().create_topic(server.bootstrap, topic, 1)
    with Confluent().producing(server.bootstrap, topic) as producer:
        producer.send([Outgoing(0, None, b"%d" % number, timestamp=1000 + number) for number in range(count)])
        producer.flush()
