"""The method names of testcontainers' `KafkaContainer`, so that a suite which has it changes one import."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

Self = TypeVar("Self", bound="ContainerMethods")

#: Variables of Kafka's images that place the broker in its container. Here *listen* does that.
_PLACING = (
    "KAFKA_ADVERTISED_",
    "KAFKA_BROKER_ID",
    "KAFKA_CONTROLLER_",
    "KAFKA_HEAP_OPTS",
    "KAFKA_INTER_BROKER_",
    "KAFKA_JMX_",
    "KAFKA_JVM_",
    "KAFKA_LISTENER",
    "KAFKA_LOG_DIRS",
    "KAFKA_LOG4J_",
    "KAFKA_NODE_ID",
    "KAFKA_OPTS",
    "KAFKA_PROCESS_ROLES",
    "KAFKA_ZOOKEEPER_",
)
#: Methods of a container that have no meaning without one.
_OF_A_CONTAINER = frozenset(
    {
        "copy_from_container",
        "copy_into_container",
        "exec",
        "get_container_id",
        "get_container_info",
        "get_docker_client",
        "get_logs",
        "get_wrapped_container",
        "reload",
        "status",
        "wait",
        "with_command",
        "with_copy_into_container",
        "with_env_file",
        "with_tmpfs_mount",
        "with_volume_mapping",
    }
)


class ContainerMethods:
    """Methods of a container, for a broker that has none."""

    _listen: str
    _config: dict[str, str]
    bootstrap: str

    def get_bootstrap_server(self) -> str:
        """Return the address for ``bootstrap.servers``."""
        return self.bootstrap

    def get_container_host_ip(self) -> str:
        """Return the host of that address."""
        return self.bootstrap.rpartition(":")[0]

    def get_exposed_port(self, port: int) -> int:
        """Return the port of that address, whatever *port* is."""
        return int(self.bootstrap.rpartition(":")[2])

    def with_env(self: Self, key: str, value: str) -> Self:
        """Take ``KAFKA_NUM_PARTITIONS`` as the setting ``num.partitions``, and so on.

        Variables that place a broker in its container, and those of other programs, have no effect.
        """
        if key.startswith("KAFKA_") and not key.startswith(_PLACING):
            self._config[key.removeprefix("KAFKA_").lower().replace("_", ".")] = str(value)
        return self

    def with_envs(self: Self, **variables: str) -> Self:
        """Take each variable as `with_env` does."""
        for key, value in variables.items():
            self.with_env(key, value)
        return self

    def with_bind_ports(self: Self, container: int | str, host: int | str | None = None) -> Self:
        """Listen on the port *host*; without it on a free one."""
        self._listen = f"{self._listen.rpartition(':')[0]}:{host or 0}"
        return self

    def _unchanged(self: Self, *_: Any, **__: Any) -> Self:
        """Change nothing: there is no container that this could be about."""
        return self

    # What these say of a container, every test gets here anyway.
    with_kraft = with_cluster_id = with_exposed_ports = with_kwargs = with_name = _unchanged
    with_network = with_network_aliases = waiting_for = maybe_emulate_amd64 = _unchanged

    # Hidden from type checkers, which would accept any name.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            if name in _OF_A_CONTAINER:
                raise AttributeError(f"{name} is about a container, and this broker runs in your process")
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
