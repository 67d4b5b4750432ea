"""Topics by the names that a user gives, and the error for a name that no topic has."""

from __future__ import annotations

from cordwood.errors import UnknownTopic
from cordwood.spark.access.access import Access
from cordwood.spark.access.planning import named_topics, subscribed
from cordwood.spark.options import Subscription
from cordwood.tenancy import suggest


def topics_of(access: Access, subscription: Subscription) -> dict[str, tuple[int, ...] | None]:
    """Return the topics that *subscription* means, with their partitions if not all.

    Raises:
        UnknownTopic: If one that is named does not exist; suggests one.
    """
    try:
        return subscribed(subscription, access.topics(named_topics(subscription)))
    except UnknownTopic as error:
        if error.missing is None or error.suggestion is not None:
            raise
        raise unknown_topic(access, error.missing) from None


def unknown_topic(access: Access, name: str) -> UnknownTopic:
    """Return the error for *name*, with the topic that was probably meant."""
    return UnknownTopic.named(name, suggestion=suggest(name, access.topics()))
