"""Settings of the Kafka client: Java's names and certificate stores become librdkafka's."""

from cordwood.kafka_client.settings.certificates import own_pem, with_certificates
from cordwood.kafka_client.settings.names import ISSUER_URL, NamedSettings, named
from cordwood.kafka_client.settings.tools import CONFIG_VARIABLE, command_settings, read_client_config
from cordwood.kafka_client.settings.translation import ClientSettings, translate

__all__ = [
    "CONFIG_VARIABLE",
    "ISSUER_URL",
    "ClientSettings",
    "NamedSettings",
    "command_settings",
    "named",
    "own_pem",
    "read_client_config",
    "translate",
    "with_certificates",
]
