"""The limits of an org; rules that find the org of a principal, written as ssl.principal.mapping.rules."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cordwood import tenancy

_RULE = re.compile(r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])+)/((?:[0-9]|\$[0-9])+)/)\s*(?:,|\Z)")


class OrgQuota(NamedTuple):
    """The limits of all clients of an org together; None means no limit."""

    producer_byte_rate: int | None = None
    consumer_byte_rate: int | None = None
    stored_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class _TenantRule:
    """A regular expression of RE2 for a whole name, and the org, with ``$1`` for its first group."""

    org: str
    pattern: Any = field(compare=False)


@dataclass(frozen=True, slots=True)
class TenantRules:
    """The value of ``cordwood.principal.tenant.rules``: ``RULE:regex/org/`` and ``DEFAULT``, in order."""

    text: str = ""
    #: None is the rule DEFAULT.
    each: tuple[_TenantRule | None, ...] = field(default=(), compare=False)

    @classmethod
    def parse(cls, text: str) -> TenantRules:
        """Parse a comma-separated list of rules.

        Raises:
            ValueError: If a rule has another form, its expression is not one of RE2, or its org is none.
        """
        rules: list[_TenantRule | None] = []
        position = 0
        while position < len(text):
            match = _RULE.match(text, position)
            if match is None or text.rstrip().endswith(","):
                raise ValueError(f"neither RULE:regex/org/ nor DEFAULT: {text[position:]!r}")
            rules.append(None if match[1] else _rule(match[2], match[3]))
            position = match.end()
        return cls(text, tuple(rules))

    def __str__(self) -> str:
        return self.text

    def orgs(self) -> set[int] | None:
        """Return the orgs that principals may get, None if the names of principals have them."""
        texts = [rule.org for rule in self.each if rule is not None]
        return None if any("$" in text for text in texts) else {tenancy.parse_org(text) for text in texts}

    def org_of(self, name: str) -> int | None:
        """Return the org of the principal *name*, None for that of its listener.

        Raises:
            ValueError: If the rule that matches makes no number of an org of it.
        """
        for rule in self.each:
            if rule is None:
                return None
            match = rule.pattern.fullmatch(name)
            if match is not None:
                parts = re.split(r"\$([0-9])", rule.org)
                # Every other part is the number of a group.
                parts[1::2] = [match.group(int(number)) or "" for number in parts[1::2]]
                return tenancy.parse_org("".join(parts))
        return None


def _rule(pattern: str, org: str) -> _TenantRule:
    # Imported here: most brokers have no rules.
    import re2

    options = re2.Options()
    options.log_errors = False
    try:
        compiled = re2.compile(pattern, options)
    except re2.error as error:
        raise ValueError(f"not a regular expression of RE2: {pattern!r}: {error}") from None
    groups = {int(number) for number in re.findall(r"\$([0-9])", org)}
    if max(groups, default=0) > compiled.groups:
        raise ValueError(f"{pattern!r} has fewer groups than {org!r} needs")
    if not groups:
        tenancy.parse_org(org)
    return _TenantRule(org, compiled)
