"""The assignors by the names that members ask for."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from cordwood.broker.groups.consumer.assignors.contract import Assignor
from cordwood.broker.groups.consumer.assignors.ordering import hash_of_text, in_table_order
from cordwood.broker.groups.consumer.assignors.ranges import assign_ranges
from cordwood.broker.groups.consumer.assignors.uniform import assign_uniform

#: Every assignor by its name.
ASSIGNORS: Mapping[str, Assignor] = MappingProxyType({"uniform": assign_uniform, "range": assign_ranges})
#: The slots of the table in which Kafka counts members by the assignors they ask for.
_COUNT_SLOTS = 4


def most_wanted(counts: Mapping[str, int], default: str) -> str:
    """Return the assignor that most members ask for, *default* if none does."""
    # As in Kafka, the first one in its table decides if several are asked for equally often.
    names = in_table_order(counts, hash_of_text, _COUNT_SLOTS)
    return max(names, key=counts.__getitem__, default=default)
