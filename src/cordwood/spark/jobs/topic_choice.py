"""The topics of a job."""

from __future__ import annotations

from cordwood.spark.access import Access, TopicState, topics_of
from cordwood.spark.options import Subscription


def chosen_topics(access: Access, topics: tuple[str, ...]) -> list[str]:
    """Return *topics*, or all that are not internal if it is empty; sorted.

    Raises:
        UnknownTopic: If one that is named does not exist.
    """
    chosen = Subscription("subscribe", topics) if topics else Subscription("subscribePattern", pattern="")
    return list(topics_of(access, chosen))


def standing_of(access: Access, names: list[str]) -> dict[str, TopicState]:
    """Return the current states of topics; topics deleted in the meantime are left out."""
    return access.standings(dict.fromkeys(names))
