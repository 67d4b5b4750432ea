"""Requests to brokers in our own declarations of Kafka's protocol, over connections of our own."""

from cordwood.wire_client.cluster import ClusterTopic, KafkaCluster
from cordwood.wire_client.connection import BrokerConnection

__all__ = [
    "BrokerConnection",
    "ClusterTopic",
    "KafkaCluster",
]
