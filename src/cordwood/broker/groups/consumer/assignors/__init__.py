"""The assignors of the server, whose results are Kafka's."""

from cordwood.broker.groups.consumer.assignors.contract import (
    Assignor,
    Partitions,
    Subscriber,
    TargetAssignment,
)
from cordwood.broker.groups.consumer.assignors.named import ASSIGNORS, most_wanted

__all__ = ["ASSIGNORS", "Assignor", "Partitions", "Subscriber", "TargetAssignment", "most_wanted"]
