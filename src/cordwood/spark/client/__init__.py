"""Settings of the Kafka client that Spark options spell: SASL, certificates."""

from cordwood.spark.client.local_server import settings_of_server
from cordwood.spark.client.settings import KAFKA, client_settings

__all__ = [
    "KAFKA",
    "client_settings",
    "settings_of_server",
]
