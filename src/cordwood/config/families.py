"""Settings of a broker that exist once per listener or per org."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from cordwood import tenancy
from cordwood.config.kinds import LONG_MAX, SettingKind, integer
from cordwood.errors import InvalidSetting

_ORG = SettingKind(tenancy.parse_org, f"the number of an org, from 0 to {tenancy.ORG_MAX}")
_BYTES_PER_SECOND = integer(1, LONG_MAX, unit="bytes")


@dataclass(frozen=True, slots=True)
class Family:
    """Settings of a broker whose names differ in one part only, such as ``<org>`` in the pattern."""

    pattern: str
    kind: SettingKind[int]
    sentence: str

    def variable_in(self, name: str) -> str | None:
        """Return the variable part of *name*, or None if *name* does not belong to the family."""
        before, _, after = re.split(r"(<\w+>)", self.pattern)
        fits = name.startswith(before) and name.endswith(after) and len(name) > len(before) + len(after)
        return name[len(before) : len(name) - len(after)] if fits else None

    def parse(self, text: str, name: str) -> int:
        """Return the value of *text*, given under *name*.

        Raises:
            InvalidSetting: If the setting does not accept *text*.
        """
        try:
            return self.kind.parse(text.strip())
        except ValueError:
            raise InvalidSetting(name, text, self.kind.expected) from None


LISTENER_ORG = Family(
    "cordwood.listener.<name>.org",
    _ORG,
    "The org of every client that connects to the listener of that name; the default is org 0.",
)
ORG_FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "producer_byte_rate": Family(
            "cordwood.org.<org>.producer.byte.rate",
            _BYTES_PER_SECOND,
            "The most bytes per second that all producers of an org may send; above it they are throttled.",
        ),
        "consumer_byte_rate": Family(
            "cordwood.org.<org>.consumer.byte.rate",
            _BYTES_PER_SECOND,
            "The most bytes per second that all consumers of an org may fetch; above it they are throttled.",
        ),
        "stored_bytes": Family(
            "cordwood.org.<org>.stored.bytes",
            integer(0, LONG_MAX, unit="bytes"),
            "The most bytes that the partitions of an org may hold; batches beyond that are refused.",
        ),
    }
)
#: Settings that exist once per listener or per org.
FAMILIES = (LISTENER_ORG, *ORG_FAMILIES.values())
