"""Topics of a Kafka cluster, copied batch by batch into a data directory, and kept up with it."""

from cordwood.mirror.mirroring import mirror_topics
from cordwood.mirror.options import MirrorOptions
from cordwood.mirror.report import (
    MirrorCheck,
    MirroredGroup,
    MirroredPartition,
    MirroredTopic,
    MirrorFailure,
    MirrorReport,
)

__all__ = [
    "MirrorCheck",
    "MirrorFailure",
    "MirrorOptions",
    "MirrorReport",
    "MirroredGroup",
    "MirroredPartition",
    "MirroredTopic",
    "mirror_topics",
]
