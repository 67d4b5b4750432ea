"""TLS and the client's side of SASL, for requests that librdkafka has no call for."""

from cordwood.kafka_client.channel.sasl import sasl_exchange
from cordwood.kafka_client.channel.tls import tls_context

__all__ = [
    "sasl_exchange",
    "tls_context",
]
