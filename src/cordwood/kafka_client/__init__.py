"""A Kafka cluster by its address, through confluent-kafka. Nothing else imports that package."""

from cordwood.kafka_client.client import DescribedTopic, KafkaClient
from cordwood.kafka_client.sender import Sender

__all__ = [
    "DescribedTopic",
    "KafkaClient",
    "Sender",
]
