"""Settings of the client of a command: a properties file as Kafka's tools have it, and single settings."""

from __future__ import annotations

from collections.abc import Mapping

from cordwood.config import parse_properties
from cordwood.errors import ConfigError
from cordwood.kafka_client.settings.certificates import with_certificates
from cordwood.kafka_client.settings.names import STORES, named
from cordwood.kafka_client.settings.translation import ClientSettings, translate

#: The variable of the environment that names a properties file for every command.
CONFIG_VARIABLE = "CORDWOOD_CLIENT_CONFIG"
_FILE_BYTES_MAX = 1 << 20
#: What a command decides. A file is often shared with programs that read and write, so it may have these.
DECIDED_BY_COMMANDS = (
    named("--bootstrap says it", "bootstrap.servers"),
    named("--timeout says it", "default.api.timeout.ms"),
    named(
        "the command decides it",
        "acks auto.offset.reset enable.auto.commit enable.partition.eof group.id interceptor.classes "
        "key.deserializer key.serializer partitioner.class transactional.id value.deserializer "
        "value.serializer",
    ),
)


def read_client_config(path: str) -> dict[str, str]:
    """Return the settings in the properties file at *path*, such as Kafka's ``client.properties``.

    Raises:
        ConfigError: If the file cannot be read or is not in this format; names the file, never a value.
    """
    try:
        with open(path, "rb") as file:
            content = file.read(_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError("", f"{path} cannot be read: {error.strerror}") from None
    if len(content) > _FILE_BYTES_MAX:
        raise ConfigError("", f"{path} is no file of settings: it has more than {_FILE_BYTES_MAX} bytes")
    try:
        return {name: value.strip() for name, value in parse_properties(content.decode()).items()}
    except UnicodeDecodeError as error:
        raise ConfigError("", f"{path} is not text in UTF-8: {error.reason} at byte {error.start}") from None
    except ConfigError as error:
        raise ConfigError(error.name, f"{path}: {error}") from None


def command_settings(file: Mapping[str, str], options: Mapping[str, str]) -> ClientSettings:
    """Return librdkafka's settings from those of a *file* and single *options*, which override it.

    Both may have Java's names or librdkafka's. ``unused`` has the options without effect; a file may have
    settings for other programs. Reads the certificate stores that are named.

    Raises:
        ConfigError: If one is not supported; says what to do.
    """
    mechanism = next(
        (
            each[name]
            for each in (options, file)
            for name in ("sasl.mechanism", "sasl.mechanisms")
            if name in each
        ),
        None,
    )
    translated = []
    for given in (file, options):
        # The user of one may belong to the mechanism of the other.
        added = {"sasl.mechanism": mechanism} if mechanism and "sasl.jaas.config" in given else {}
        translated.append(translate({**given, **added}, without_effect=DECIDED_BY_COMMANDS))
    merged = translated[0].settings | translated[1].settings
    direct = {name: value for name, value in translated[1].settings.items() if name not in STORES}
    return ClientSettings(with_certificates(merged) | direct, unused=translated[1].unused)
