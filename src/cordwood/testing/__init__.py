"""Kafka for tests: a broker in memory that fails on request, fixtures for pytest, a class for unittest.

Nothing is imported before it is used: pytest loads `cordwood.testing.plugin` in every run.
"""

from typing import TYPE_CHECKING

from cordwood.lazily import lazily

if TYPE_CHECKING:
    from cordwood.testing.asking import BrokerRefused
    from cordwood.testing.broker import KafkaBroker, KafkaContainer
    from cordwood.testing.unit import KafkaTestCase
else:
    __getattr__ = lazily(
        __name__,
        {
            "BrokerRefused": "cordwood.testing.asking",
            "KafkaBroker": "cordwood.testing.broker",
            "KafkaContainer": "cordwood.testing.broker",
            "KafkaTestCase": "cordwood.testing.unit",
        },
    )

__all__ = ["BrokerRefused", "KafkaBroker", "KafkaContainer", "KafkaTestCase"]
