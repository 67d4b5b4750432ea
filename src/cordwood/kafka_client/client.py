"""Requests to a Kafka cluster: each is made for many topics at once, and each failure names the address."""

from __future__ import annotations

import concurrent.futures
import re
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from cordwood.errors import ConfigError, CordwoodError, NotAllowed
from cordwood.kafka_client.settings import ISSUER_URL
from cordwood.kafka_client.tokens import read_token, token_call, token_file
from cordwood.records import TopicPartition

#: Partitions, or topics, of one request. A server may refuse a request of several megabytes.
AT_A_TIME = 5000
#: The least time for an operation that may copy a segment.
OPERATION_SECONDS = 120.0
_CORDWOOD_CLUSTER = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
#: How long to wait for an answer before looking whether the broker lets the client in at all.
_LOOK_SECONDS = 0.2
#: Settings for asking an issuer of tokens, which librdkafka refuses beside a token that is given to it.
_OF_ISSUERS = ("sasl.oauthbearer.method", "sasl.oauthbearer.extensions")

Item = TypeVar("Item")


class DescribedTopic(NamedTuple):
    """A topic as a broker describes it. The id is written as a data directory writes it; None without one.

    ``operations`` are those that the client may do, with Kafka's names; None if the broker was not asked, or
    does not say.
    """

    topic_id: str | None
    partitions: int
    operations: frozenset[str] | None = None

    def may(self, operation: str) -> bool:
        """Return whether the client may do *operation*, as far as is known."""
        return self.operations is None or operation in self.operations


class KafkaClient:
    """A client of one cluster, which keeps its connections until `close`. One thread.

    ``kafka`` is the module confluent_kafka, ``admin`` its admin client, and ``unknown`` the codes for a
    topic or partition that does not exist, the client's own included.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        seconds: float,
        *,
        consumer_settings: Mapping[str, Any] | None = None,
        only_committed: bool = False,
        advice: str = "",
    ) -> None:
        """Take *settings* of the client; *seconds* is the limit for an answer.

        Consumers get *consumer_settings*, or *settings* if there are none. With *only_committed* the end of
        a partition is the last stable offset. *advice* ends the sentence about a broker that does not answer.

        Raises:
            CordwoodError: If confluent-kafka is not installed.
            ConfigError: If the client refuses a setting.
        """
        try:
            import confluent_kafka
            import confluent_kafka.admin
        except ImportError as error:
            raise CordwoodError(
                "talking to a broker needs confluent-kafka, which is not installed: "
                "pip install confluent-kafka"
            ) from error
        self.kafka: Any = confluent_kafka
        self.settings = dict(settings)
        self.address = str(settings["bootstrap.servers"])
        self.seconds = seconds
        codes = self.kafka.KafkaError
        self.unknown = (codes.UNKNOWN_TOPIC_OR_PART, codes._UNKNOWN_TOPIC, codes._UNKNOWN_PARTITION)
        self._unreachable = (codes._TRANSPORT, codes._TIMED_OUT, codes._ALL_BROKERS_DOWN, codes._RESOLVE)
        self._not_let_in = (codes._SSL, codes._AUTHENTICATION)
        self._refused: str | None = None
        self._is_secured = str(settings.get("security.protocol", "plaintext")).lower() != "plaintext"
        self._consumer_settings = dict(settings if consumer_settings is None else consumer_settings)
        levels = self.kafka.IsolationLevel
        self._isolation = levels.READ_COMMITTED if only_committed else levels.READ_UNCOMMITTED
        self._advice = advice
        self.admin: Any = self._made(self.kafka.admin.AdminClient, self.settings)

    def consumer(self, settings: Mapping[str, Any] | None = None) -> Any:
        """Return a new consumer, with *settings* in place of the usual ones. The caller closes it.

        Raises:
            ConfigError: If it refuses a setting.
        """
        return self._made(self.kafka.Consumer, {**self._consumer_settings, **(settings or {})})

    def producer(self, settings: Mapping[str, Any]) -> Any:
        """Return a new producer with exactly *settings*. Raises as `consumer` does."""
        return self._made(self.kafka.Producer, settings)

    def _made(self, kind: Callable[[Any], Any], settings: Mapping[str, Any]) -> Any:
        # Errors come as answers to requests; librdkafka would write them to the console as well.
        given = {**settings, "error_cb": self._note, "log_level": 0}
        path = token_file(settings)
        if path is not None:
            # At once: without a token the client would wait for one.
            read_token(path)
            given["oauth_cb"] = token_call(settings)
            del given[ISSUER_URL]
            for name in _OF_ISSUERS:
                given.pop(name, None)
        try:
            return kind(given)
        except self.kafka.KafkaException as error:
            sentence = f"the Kafka client refuses a setting: {self.error_of(error).str()}"
            raise ConfigError("kafka.", sentence) from error

    def _note(self, error: Any) -> None:
        """Keep why a broker is not trusted, or does not let the client in: answers only time out."""
        if error.code() in self._not_let_in:
            self._refused = str(error.str())
        elif error.code() == self.kafka.KafkaError._TRANSPORT and self._is_secured:
            # Such as the alert of a broker that asks for a certificate.
            self._advice = str(error.str())

    def _check_let_in(self) -> None:
        """Raise CordwoodError with the reason for which no answer will come, if there is one."""
        self.admin.poll(0)
        if self._refused is not None:
            raise CordwoodError(f"{self.address} cannot be used: {self._refused}")

    # --- requests ---------------------------------------------------------------------------------

    def error_of(self, error: Exception) -> Any:
        """Return the KafkaError in an exception of the client: it has the code and the sentence."""
        found = error.args[0] if error.args else None
        codes = self.kafka.KafkaError
        return found if isinstance(found, codes) else codes(codes._FAIL, str(error))

    def failure(self, doing: str, error: Exception) -> CordwoodError:
        """Return the error for an exception of the client that came while *doing* something.

        Raises:
            CordwoodError: If the reason is that the broker does not let the client in.
        """
        found = self.error_of(error)
        if found.code() in self._unreachable:
            self._check_let_in()
        if self._advice and found.code() in self._unreachable:
            return CordwoodError(
                f"no broker answers at {self.address} within {self.seconds:g} s: {self._advice}"
            )
        return CordwoodError(f"{doing} at {self.address} failed: {found.str()}")

    def asked(self, doing: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Return what *call* returns.

        Raises:
            CordwoodError: If the broker does not answer or refuses; see `failure`.
        """
        try:
            return call(*arguments, **options)
        except self.kafka.KafkaException as error:
            raise self.failure(doing, error) from error

    def one(self, doing: str, call: Callable[..., Any], *arguments: Any) -> Any:
        """Return the only answer to *call*, a request of the admin client. Raises as `asked` does."""
        (future,) = self.asked(doing, call, *arguments, request_timeout=self.seconds).values()
        return self.asked(doing, self._answer, future)

    def _answer(self, future: concurrent.futures.Future[Any]) -> Any:
        """Return the answer. What keeps the client out is told at once, not when the time is over."""
        while True:
            try:
                return future.result(_LOOK_SECONDS)
            except concurrent.futures.TimeoutError:
                self._check_let_in()

    def _existing(self, doing: str, answers: Mapping[Item, Any]) -> Iterator[tuple[Item, Any]]:
        """Yield the answers, without those that say that there is no such topic or partition.

        Raises:
            NotAllowed: If the client may not know about one.
        """
        missing = (*self.unknown, self.kafka.KafkaError.TOPIC_EXCEPTION)
        for item, answer in answers.items():
            try:
                yield item, self._answer(answer)
            except self.kafka.KafkaException as error:
                if self._is_denied(error):
                    topic = item if isinstance(item, str) else getattr(item, "topic", item)
                    raise NotAllowed("DESCRIBE", str(topic), self.address) from error
                if self.error_of(error).code() not in missing:
                    raise self.failure(doing, error) from error

    def _is_denied(self, error: Exception) -> bool:
        denied = self.kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED
        return bool(self.error_of(error).code() == denied)

    # --- topics -----------------------------------------------------------------------------------

    def cluster_id(self) -> str | None:
        """Return the id of the cluster."""
        found = self._listed("asking for the cluster").cluster_id
        return None if found is None else str(found)

    def _listed(self, doing: str) -> Any:
        """Return all topics. What keeps the client out is told at once, not when the time is over."""
        until = time.monotonic() + self.seconds
        while True:
            left = until - time.monotonic()
            try:
                return self.admin.list_topics(timeout=max(min(left, _LOOK_SECONDS), 0.001))
            except self.kafka.KafkaException as error:
                self._check_let_in()
                if left <= _LOOK_SECONDS or self.error_of(error).code() not in self._unreachable:
                    raise self.failure(doing, error) from error

    def is_cordwood(self) -> bool:
        """Return whether the broker is Cordwood. Ours call their cluster by a UUID, Kafka's do not."""
        return _CORDWOOD_CLUSTER.fullmatch(self.cluster_id() or "") is not None

    def topics(self) -> dict[str, int]:
        """Return all topics and their numbers of partitions."""
        found = self._listed("asking for the topics")
        return {name: len(topic.partitions) for name, topic in found.topics.items()}

    def describe(self, names: Collection[str], *, rights: bool = False) -> dict[str, DescribedTopic]:
        """Return those of *names* that exist, with *rights* also what the client may do with them.

        Raises:
            NotAllowed: If the client may not know about one.
            CordwoodError: If the broker does not answer, or not for one of them.
        """
        doing, found = "asking for the topics", {}
        for some in _parts(sorted(names)):
            wanted = self.kafka.TopicCollection(some)
            answers = self.asked(
                doing,
                self.admin.describe_topics,
                wanted,
                include_authorized_operations=rights,
                request_timeout=self.seconds,
            )
            for name, answer in self._existing(doing, answers):
                allowed = frozenset(each.name for each in answer.authorized_operations or ()) or None
                found[name] = DescribedTopic(_uuid(answer.topic_id), len(answer.partitions), allowed)
        return found

    def config_of(self, topic: str) -> Mapping[str, Any]:
        """Return the settings of a topic by name, each with ``value`` and ``source``."""
        found: Mapping[str, Any] = self.one(
            f"asking for the settings of topic {topic}", self.admin.describe_configs, [self._resource(topic)]
        )
        return found

    def create(
        self,
        topic: str,
        partitions: int | None,
        config: Mapping[str, str],
        copies: int = -1,
        *,
        dry_run: bool = False,
    ) -> bool:
        """Create a topic unless it exists, and return whether it did not.

        Without *partitions*, and with -1 *copies*, the broker decides how many.

        Raises:
            NotAllowed: If the client may not create it.
            CordwoodError: If the broker does not answer or refuses.
        """
        new = self.kafka.admin.NewTopic(topic, partitions or -1, copies, config=dict(config))
        (future,) = self.admin.create_topics(
            [new], request_timeout=self.seconds, validate_only=dry_run
        ).values()
        try:
            self._answer(future)
        except self.kafka.KafkaException as error:
            if self._is_denied(error):
                raise NotAllowed("CREATE", topic, self.address) from error
            if self.error_of(error).code() != self.kafka.KafkaError.TOPIC_ALREADY_EXISTS:
                raise self.failure(f"creating topic {topic}", error) from error
            return False
        return True

    def alter_config(self, topic: str, config: Mapping[str, str], unset: Iterable[str] = ()) -> None:
        """Set settings of a topic, and give the broker's back to those that are *unset*."""
        admin = self.kafka.admin
        kinds = admin.AlterConfigOpType
        changes: list[tuple[str, str | None, Any]] = [
            (name, value, kinds.SET) for name, value in config.items()
        ]
        changes += [(name, None, kinds.DELETE) for name in unset]
        entries = [
            admin.ConfigEntry(name, value, incremental_operation=kind) for name, value, kind in changes
        ]
        resource = self._resource(topic, incremental_configs=entries)
        self.one(f"altering topic {topic}", self.admin.incremental_alter_configs, [resource])

    def operate(self, topic: str, name: str, value: str, doing: str, *, dry_run: bool) -> None:
        """Ask a Cordwood broker for an operation on a topic: the value of the setting *name*, never stored.

        Raises:
            CordwoodError: If the broker is not Cordwood, or refuses; with its sentence.
        """
        if not self.is_cordwood():
            raise CordwoodError(f"{self.address} is not a Cordwood broker: {doing} is not possible there")
        admin = self.kafka.admin
        entry = admin.ConfigEntry(name, value, incremental_operation=admin.AlterConfigOpType.SET)
        resource = self._resource(topic, incremental_configs=[entry])
        (future,) = self.asked(
            doing,
            self.admin.incremental_alter_configs,
            [resource],
            validate_only=dry_run,
            # The broker may have to copy a segment.
            request_timeout=max(self.seconds, OPERATION_SECONDS),
        ).values()
        self.asked(doing, self._answer, future)

    def delete(self, topic: str) -> None:
        """Delete a topic."""
        self.one(f"deleting topic {topic}", self.admin.delete_topics, [topic])

    def _resource(self, topic: str, **more: Any) -> Any:
        return self.kafka.admin.ConfigResource(self.kafka.admin.ResourceType.TOPIC, topic, **more)

    # --- offsets ----------------------------------------------------------------------------------

    def ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """Return the first and the next offset of those of *partitions* that exist."""
        doing, specs = "asking for the ends of partitions", self.kafka.admin.OffsetSpec
        # In this order: the end never passes a start that was taken before it.
        start = self._offsets(doing, dict.fromkeys(partitions, specs.earliest()))
        end = self._offsets(doing, dict.fromkeys(start, specs.latest()))
        return {place: (start[place], offset) for place, offset in end.items()}

    def offsets_at(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Return the offset of the first record at or after the time of each partition, None without one.

        Raises:
            CordwoodError: If the broker does not answer, or a partition does not exist.
        """
        spec = self.kafka.admin.OffsetSpec.for_timestamp
        found = self._offsets("asking for a time", {place: spec(time) for place, time in times.items()})
        for topic, number in times.keys() - found.keys():
            raise CordwoodError(f"partition {number} of topic {topic} is gone at {self.address}")
        return {place: None if offset < 0 else offset for place, offset in found.items()}

    def _offsets(self, doing: str, specs: Mapping[TopicPartition, Any]) -> dict[TopicPartition, int]:
        """Return the offset that is asked for of each partition that exists."""
        found = {}
        for some in _parts(list(specs.items())):
            answers = self.asked(
                doing,
                self.admin.list_offsets,
                {self.kafka.TopicPartition(*place): spec for place, spec in some},
                isolation_level=self._isolation,
                request_timeout=self.seconds,
            )
            for place, answer in self._existing(doing, answers):
                found[place.topic, place.partition] = int(answer.offset)
        return found

    def close(self) -> None:
        """Close the connections."""
        self.admin = None


def _uuid(found: Any) -> str | None:
    high = found.get_most_significant_bits() % (1 << 64)
    low = found.get_least_significant_bits() % (1 << 64)
    return str(uuid.UUID(int=high << 64 | low)) if high or low else None


def _parts(items: Sequence[Item]) -> Iterable[list[Item]]:
    return (list(items[at : at + AT_A_TIME]) for at in range(0, len(items), AT_A_TIME))
