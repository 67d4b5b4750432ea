"""Settings of the Kafka client that Spark options spell: SASL, certificates."""

from cordwood.spark.client.certificates import with_certificates
from cordwood.spark.client.settings import KAFKA, ClientSettings, client_settings

__all__ = [
    "KAFKA",
    "ClientSettings",
    "client_settings",
    "with_certificates",
]
