"""Ways to the records for driver and tasks: by path, by address, through the shared log."""

from typing import TYPE_CHECKING

from cordwood.lazily import lazily
from cordwood.spark.access.access import (
    UNKNOWN_EPOCH,
    UNKNOWN_ID,
    Access,
    Ends,
    Measure,
    Piece,
    TopicState,
    open_access,
)
from cordwood.spark.access.naming import topics_of, unknown_topic
from cordwood.spark.access.planning import (
    PIECE_BYTES_MAX,
    Partition,
    cut_pieces,
    find_offsets,
    is_due,
    left_of,
    named_topics,
    share_out,
    share_tasks,
    subscribed,
)
from cordwood.spark.access.positions import Positions, at, find_gone, find_loss, from_json, settle

if TYPE_CHECKING:
    from cordwood.spark.access.gathering import Gathered
else:
    # It imports the engine, which a worker that only plans a query does not need.
    __getattr__ = lazily(__name__, {"Gathered": "cordwood.spark.access.gathering"})

__all__ = [
    "PIECE_BYTES_MAX",
    "UNKNOWN_EPOCH",
    "UNKNOWN_ID",
    "Access",
    "Ends",
    "Gathered",
    "Measure",
    "Partition",
    "Piece",
    "Positions",
    "TopicState",
    "at",
    "cut_pieces",
    "find_gone",
    "find_loss",
    "find_offsets",
    "from_json",
    "is_due",
    "left_of",
    "named_topics",
    "open_access",
    "settle",
    "share_out",
    "share_tasks",
    "subscribed",
    "topics_of",
    "unknown_topic",
]
