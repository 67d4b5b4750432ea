"""Translate ``kafka.`` options, which have Java's names, to librdkafka's settings. Pure.

A setting that both clients know is passed on. The others are translated, have no effect, or are refused with
what to do instead; the tables below say which. Messages never contain passwords.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from cordwood.errors import ConfigError, InvalidSetting
from cordwood.spark.client.jaas import from_jaas

KAFKA = "kafka."
#: The path of a certificate store, its type and its password; files are read when a client is created.
TRUSTSTORE = "ssl.truststore.location"
KEYSTORE = "ssl.keystore.location"
STORES = tuple(
    f"ssl.{store}.{part}" for store in ("truststore", "keystore") for part in ("location", "type", "password")
)


@dataclass(frozen=True)
class ClientSettings:
    """The settings of a client, and the options without effect, each with its reason.

    ``answer_seconds`` is the time limit for an answer of the broker, None if not given.
    """

    settings: dict[str, str] = field(default_factory=dict)
    answer_seconds: float | None = None
    unused: dict[str, str] = field(default_factory=dict)


class _Names(NamedTuple):
    """Settings that are handled alike, and the sentence about them that follows their name."""

    names: frozenset[str]
    sentence: str


def _names(sentence: str, names: str) -> _Names:
    return _Names(frozenset(names.split()), sentence)


RENAMED = {
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "max.partition.fetch.bytes": "fetch.message.max.bytes",
    "max.request.size": "message.max.bytes",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "request.timeout.ms": "socket.timeout.ms",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
    "ssl.truststore.certificates": "ssl.ca.pem",
}
#: Settings whose value is changed too, or which become several settings.
TRANSLATED = (
    "buffer.memory",
    "compression.gzip.level",
    "compression.lz4.level",
    "compression.zstd.level",
    "default.api.timeout.ms",
    "sasl.jaas.config",
    "ssl.endpoint.identification.algorithm",
    *STORES,
)

#: Settings that Spark's connector refuses in a source, and in a sink.
REFUSED_READING = (
    _names("is not supported: startingOffsets says where a query starts", "auto.offset.reset"),
    _names("is not supported: Spark's checkpoint keeps the offsets", "enable.auto.commit"),
    _names(
        "is not supported: key and value are binary columns, cast them in the query",
        "key.deserializer value.deserializer",
    ),
    _names("is not supported: it could change records", "interceptor.classes"),
    _names("is not supported: the source ends a range by it", "enable.partition.eof"),
)
REFUSED_WRITING = (
    _names(
        "is not supported: key and value are written as they are, cast them in the query",
        "key.serializer value.serializer",
    ),
    _names("is not supported: it could change records", "interceptor.classes"),
    _names(
        "is not supported: the sink has transactions of its own, which txnAppId names in a batch write",
        "transactional.id",
    ),
    _names(
        "is not supported: a column partition says where a row goes, else its key, as in every Kafka client",
        "partitioner.class",
    ),
)
#: Settings that could run code: any user who may send SQL can set options.
REFUSED = (
    _names(
        "is refused: it makes the client load a library or run a command",
        "plugin.library.paths ssl.engine.location ssl.engine.id ssl.providers sasl.kerberos.kinit.cmd",
    ),
    _names(
        "is refused: it names a Java class, and this client is not Java's; give user name and password in "
        "kafka.sasl.jaas.config, or kafka.sasl.oauthbearer.method=oidc with its settings",
        "sasl.client.callback.handler.class sasl.login.callback.handler.class sasl.login.class",
    ),
    _names(
        "is refused: it names a Java class, and this client is not Java's; give certificates as PEM files in "
        "kafka.ssl.ca.location, kafka.ssl.certificate.location and kafka.ssl.key.location",
        "security.providers ssl.engine.factory.class",
    ),
    _names("is not a setting of text", "logger on_commit on_delivery default.topic.config"),
)
_CALLBACK = re.compile(r"\w*_cb")

WITHOUT_EFFECT = (
    _names("partitions are given to tasks by Spark", "partition.assignment.strategy exclude.internal.topics"),
    _names("a task takes records by the megabyte", "max.poll.records"),
    _names(
        "the client has no such metrics",
        "metric.reporters metrics.num.samples metrics.recording.level metrics.sample.window.ms "
        "auto.include.jmx.reporter",
    ),
    _names("this client waits in another way", "max.block.ms metadata.max.idle.ms"),
    _names(
        "this client has one limit for connecting, socket.connection.setup.timeout.ms",
        "socket.connection.setup.timeout.max.ms",
    ),
    _names(
        "OpenSSL decides it",
        "ssl.protocol ssl.enabled.protocols ssl.provider ssl.keymanager.algorithm ssl.trustmanager.algorithm "
        "ssl.secure.random.implementation",
    ),
    _names(
        "this client renews logins by itself",
        "sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor "
        "sasl.login.connect.timeout.ms sasl.login.read.timeout.ms sasl.login.refresh.buffer.seconds "
        "sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor "
        "sasl.login.refresh.window.jitter sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms",
    ),
    _names(
        "brokers use it",
        "sasl.oauthbearer.clock.skew.seconds sasl.oauthbearer.expected.audience "
        "sasl.oauthbearer.expected.issuer sasl.oauthbearer.header.urlencode "
        "sasl.oauthbearer.jwks.endpoint.refresh.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms "
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms sasl.oauthbearer.jwks.endpoint.url "
        "sasl.oauthbearer.scope.claim.name",
    ),
    _names(
        "a column partition or the key says where a row goes",
        "partitioner.adaptive.partitioning.enable partitioner.availability.timeout.ms "
        "partitioner.ignore.keys",
    ),
)
WITHOUT_EFFECT_READING = (
    _names(
        "it is for writing",
        "key.serializer value.serializer partitioner.class transactional.id acks enable.idempotence "
        "delivery.timeout.ms",
    ),
)
WITHOUT_EFFECT_WRITING = (
    _names(
        "the sink always waits until everything is synced",
        "acks enable.idempotence delivery.timeout.ms default.api.timeout.ms",
    ),
    _names(
        "it is for reading",
        "key.deserializer value.deserializer auto.offset.reset enable.auto.commit enable.partition.eof "
        "group.id",
    ),
)
#: librdkafka puts these into the command of ``kinit``, so they must not contain characters with a meaning in
#: a shell.
_IN_A_COMMAND = ("sasl.kerberos.principal", "sasl.kerberos.keytab", "sasl.kerberos.service.name")
_PLAIN = re.compile(r"[\w.@/:-]*", re.ASCII)


def client_settings(given: Mapping[str, str], *, writing: bool) -> ClientSettings:
    """Return librdkafka's settings for *given* options, without their ``kafka.``, of a source or sink.

    Raises:
        ConfigError: If one is not supported; says what to do.
    """
    found, unused = dict(given), {}
    for names, sentence in (*(REFUSED_WRITING if writing else REFUSED_READING), *REFUSED):
        for name in sorted(names & found.keys()):
            raise ConfigError(KAFKA + name, f"{KAFKA}{name} {sentence}")
    for name in found:
        if _CALLBACK.fullmatch(name):
            raise ConfigError(KAFKA + name, f"{KAFKA}{name} is not a setting of text")
    of_one = WITHOUT_EFFECT_WRITING if writing else WITHOUT_EFFECT_READING
    for names, sentence in (*WITHOUT_EFFECT, *of_one):
        for name in sorted(names & found.keys()):
            unused[KAFKA + name] = sentence
            del found[name]
    seconds = _translate(found, unused)
    for name in _IN_A_COMMAND:
        if not _PLAIN.fullmatch(found.get(name, "")):
            raise InvalidSetting(KAFKA + name, found[name], "letters, digits and any of _.@/:-")
    return ClientSettings(found, seconds, unused)


def _translate(found: dict[str, str], unused: dict[str, str]) -> float | None:
    """Replace Java's settings in *found* by librdkafka's; return the time limit for an answer."""
    for name, other in RENAMED.items():
        if name in found:
            value = found.pop(name)
            # Java's -1 leaves the size of a socket's buffer to the system, as 0 does here.
            found[other] = "0" if name.endswith("buffer.bytes") and value.strip() == "-1" else value
    if "sasl.jaas.config" in found:
        found |= from_jaas(found.pop("sasl.jaas.config"), found.get("sasl.mechanism"))
    if found.get("ssl.endpoint.identification.algorithm", "https").strip() == "":
        found["ssl.endpoint.identification.algorithm"] = "none"
    if "buffer.memory" in found:
        found["queue.buffering.max.kbytes"] = str(max(_whole(found, "buffer.memory") // 1024, 1))
        del found["buffer.memory"]
    for codec in ("gzip", "lz4", "zstd"):
        level = found.pop(f"compression.{codec}.level", None)
        if level is not None and found.get("compression.type") == codec:
            found["compression.level"] = level
        elif level is not None:
            unused[f"{KAFKA}compression.{codec}.level"] = f"compression.type is not {codec}"
    if "default.api.timeout.ms" not in found:
        return None
    milliseconds = _whole(found, "default.api.timeout.ms")
    del found["default.api.timeout.ms"]
    return milliseconds / 1000


def _whole(found: Mapping[str, str], name: str) -> int:
    text = found[name].strip()
    if not re.fullmatch(r"\d{1,15}", text) or int(text) == 0:
        raise InvalidSetting(KAFKA + name, found[name], "a whole number from 1 on")
    return int(text)
