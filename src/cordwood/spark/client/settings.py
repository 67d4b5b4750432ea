"""The settings of the Kafka client that options of Spark may have, by ``kafka.`` names. Pure.

`cordwood.kafka_client.settings` translates them; the tables here are what a source or a sink refuses, or
decides by itself.
"""

from __future__ import annotations

from collections.abc import Mapping

from cordwood.errors import ConfigError
from cordwood.kafka_client.settings import ISSUER_URL, ClientSettings, named, translate

KAFKA = "kafka."

#: Settings that Spark's connector refuses in a source, and in a sink.
REFUSED_READING = (
    named("is not supported: startingOffsets says where a query starts", "auto.offset.reset"),
    named("is not supported: Spark's checkpoint keeps the offsets", "enable.auto.commit"),
    named(
        "is not supported: key and value are binary columns, cast them in the query",
        "key.deserializer value.deserializer",
    ),
    named("is not supported: it could change records", "interceptor.classes"),
    named("is not supported: the source ends a range by it", "enable.partition.eof"),
)
REFUSED_WRITING = (
    named(
        "is not supported: key and value are written as they are, cast them in the query",
        "key.serializer value.serializer",
    ),
    named("is not supported: it could change records", "interceptor.classes"),
    named(
        "is not supported: the sink has transactions of its own, which txnAppId names in a batch write",
        "transactional.id",
    ),
    named(
        "is not supported: a column partition says where a row goes, else its key, as in every Kafka client",
        "partitioner.class",
    ),
)
#: Settings that could run code: any user who may send SQL can set options.
REFUSED = (
    named(
        "is refused: it makes the client load a library or run a command",
        "plugin.library.paths ssl.engine.location ssl.engine.id ssl.providers sasl.kerberos.kinit.cmd",
    ),
)
WITHOUT_EFFECT_READING = (
    named(
        "it is for writing",
        "key.serializer value.serializer partitioner.class transactional.id acks enable.idempotence "
        "delivery.timeout.ms",
    ),
)
WITHOUT_EFFECT_WRITING = (
    named(
        "the sink always waits until everything is synced",
        "acks enable.idempotence delivery.timeout.ms default.api.timeout.ms",
    ),
    named(
        "it is for reading",
        "key.deserializer value.deserializer auto.offset.reset enable.auto.commit enable.partition.eof "
        "group.id isolation.level",
    ),
)


def client_settings(given: Mapping[str, str], *, writing: bool) -> ClientSettings:
    """Return librdkafka's settings for *given* options, without their ``kafka.``, of a source or sink.

    Raises:
        ConfigError: If one is not supported; says what to do.
    """
    # A broker named in the same options would get the content of the file.
    if given.get(ISSUER_URL, "").strip().lower().startswith("file:"):
        raise ConfigError(
            KAFKA + ISSUER_URL,
            f"{KAFKA}{ISSUER_URL} is refused: options must not name a file whose content is sent; "
            "give the address that issues tokens",
        )
    return translate(
        given,
        prefix=KAFKA,
        refused=(*(REFUSED_WRITING if writing else REFUSED_READING), *REFUSED),
        without_effect=WITHOUT_EFFECT_WRITING if writing else WITHOUT_EFFECT_READING,
    )
