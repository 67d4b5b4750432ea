"""`cordwood.testing.KafkaContainer` in the place of testcontainers' class of that name."""

from __future__ import annotations

import socket

import pytest
from confluent_kafka import Producer
from support.patience import SECONDS_MAX

from cordwood.errors import UnknownSetting
from cordwood.testing import KafkaBroker, KafkaContainer

#: The public methods of testcontainers 4.15's KafkaContainer and of the container that it is, and whether
#: they work here. ``configure``, ``create_file`` and ``tc_start`` are for its subclasses.
METHODS = {
    "copy_from_container": False,
    "copy_into_container": False,
    "exec": False,
    "get_bootstrap_server": True,
    "get_container_host_ip": True,
    "get_container_id": False,
    "get_container_info": False,
    "get_docker_client": False,
    "get_exposed_port": True,
    "get_logs": False,
    "get_wrapped_container": False,
    "maybe_emulate_amd64": True,
    "reload": False,
    "start": True,
    "status": False,
    "stop": True,
    "wait": False,
    "waiting_for": True,
    "with_bind_ports": True,
    "with_cluster_id": True,
    "with_command": False,
    "with_copy_into_container": False,
    "with_env": True,
    "with_env_file": False,
    "with_envs": True,
    "with_exposed_ports": True,
    "with_kraft": True,
    "with_kwargs": True,
    "with_name": True,
    "with_network": True,
    "with_network_aliases": True,
    "with_tmpfs_mount": False,
    "with_volume_mapping": False,
}


@pytest.mark.parametrize(("name", "works"), METHODS.items())
def test_each_method_of_a_container_works_or_says_why_not(name: str, works: bool) -> None:
    if works:
        assert callable(getattr(KafkaBroker(), name))
    else:
        with pytest.raises(AttributeError, match=f"^{name} is about a container, and this"):
            getattr(KafkaBroker(), name)


def test_the_code_of_testcontainers_readme_works() -> None:
    with KafkaContainer() as kafka:
        connection = kafka.get_bootstrap_server()
        host, _, port = connection.rpartition(":")
        socket.create_connection((host, int(port)), SECONDS_MAX).close()
        assert (kafka.get_container_host_ip(), kafka.get_exposed_port(9093)) == (host, int(port))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), SECONDS_MAX)


def test_a_chain_of_builder_methods_gives_a_broker_with_these_settings() -> None:
    kafka = (
        KafkaContainer("confluentinc/cp-kafka:7.6.0", port=9093)
        .with_kraft()
        .with_name("kafka")
        .with_env("KAFKA_NUM_PARTITIONS", "3")
        .with_env("KAFKA_ADVERTISED_LISTENERS", "PLAINTEXT://elsewhere:1")
        .with_envs(KAFKA_HEAP_OPTS="-Xmx1g", CLUSTER_ID="x")
        .with_exposed_ports(9093)
        .start(timeout=60)
    )
    try:
        producer = Producer({"bootstrap.servers": kafka.get_bootstrap_server(), "log_level": 2})
        producer.produce("orders", b"axe")
        assert producer.flush(SECONDS_MAX) == 0
        assert kafka.log.topic("orders").partitions == 3
    finally:
        kafka.stop(force=True, delete_volume=True)


def test_a_bound_port_is_the_one_it_listens_on() -> None:
    with KafkaContainer() as first:
        free = first.get_exposed_port(9093)
    with KafkaContainer().with_bind_ports(9093, free) as kafka:
        assert kafka.get_exposed_port(9093) == free


def test_a_setting_that_kafka_does_not_have_is_refused_at_the_start() -> None:
    with pytest.raises(UnknownSetting, match=r"did you mean num\.partitions"):
        KafkaContainer().with_env("KAFKA_NUM_PARTITION", "3").start()


def test_an_attribute_that_neither_has_is_missing_as_usual() -> None:
    with pytest.raises(AttributeError, match="'KafkaBroker' object has no attribute 'nonsense'"):
        _ = KafkaBroker().nonsense  # type: ignore[attr-defined]
