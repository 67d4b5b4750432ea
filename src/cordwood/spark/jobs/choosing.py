"""Which topics a job is about."""

from __future__ import annotations

from cordwood.spark.access import Access, Standing
from cordwood.spark.options import Subscription
from cordwood.spark.planning import subscribed


def chosen_topics(access: Access, topics: tuple[str, ...]) -> list[str]:
    """Return *topics*, or without any all that are not internal; sorted.

    Raises:
        UnknownTopic: If one that is named does not exist.
    """
    chosen = Subscription("subscribe", topics) if topics else Subscription("subscribePattern", pattern="")
    return list(subscribed(chosen, access.topics()))


def standing_of(access: Access, names: list[str]) -> dict[str, Standing]:
    """Return where topics stand now; one that was deleted meanwhile is left out."""
    return access.standings(dict.fromkeys(names))
