"""The rules that find the org of a principal."""

from __future__ import annotations

import pytest

from cordwood.config.loading import load_broker_config
from cordwood.config.tenant_rules import TenantRules
from cordwood.errors import InvalidSetting


@pytest.mark.parametrize(
    ("text", "name", "org"),
    [
        ("", "alice", None),
        ("DEFAULT", "alice", None),
        ("RULE:alice/7/", "alice", 7),
        ("RULE:alice/7/", "malice", None),
        ("RULE:alice/7/", "alice2", None),
        ("RULE:org-([0-9]+)-.*/$1/", "org-12-app", 12),
        ("RULE:(a)(b)/$2$1/,DEFAULT", "x", None),
        ("DEFAULT, RULE:.*/7/", "alice", None),
        ("RULE:a/1/ , RULE:.*/2/", "b", 2),
        ("RULE:a,b/3/,RULE:.*/4/", "a,b", 3),
        (r"RULE:a\/b/3/", "a/b", 3),
        ("RULE:alice/0/", "alice", 0),
    ],
)
def test_the_first_rule_that_matches_the_whole_name_decides(text: str, name: str, org: int | None) -> None:
    rules = TenantRules.parse(text)
    assert rules.org_of(name) == org
    assert TenantRules.parse(str(rules)) == rules


@pytest.mark.parametrize(
    "text",
    [
        "alice",
        "RULE:alice",
        "RULE:alice/",
        "RULE:alice/seven/",
        "RULE:(/7/",
        "RULE:alice/$1/",
        "RULE:a/7/ RULE:b/8/",
        "RULE:a/7/,",
        "RULE:a/07/",
        "RULE:a/18446744073709551616/",
        "RULE:(a)\\1/7/",
        "RULE://7/",
        "default",
    ],
)
def test_what_is_not_a_rule_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        TenantRules.parse(text)
    with pytest.raises(InvalidSetting):
        load_broker_config({"cordwood.principal.tenant.rules": text})


@pytest.mark.parametrize("name", ["org-007", "org-", "org-99999999999999999999"])
def test_a_rule_that_makes_no_org_of_a_name_never_falls_back_to_that_of_the_listener(name: str) -> None:
    with pytest.raises(ValueError):
        TenantRules.parse("RULE:org-([0-9]*)/$1/,DEFAULT").org_of(name)


def test_clients_of_an_org_are_not_told_the_rules_of_others() -> None:
    config, _ = load_broker_config({"cordwood.principal.tenant.rules": "RULE:alice/7/"})
    assert config.seen_by(7).tenant_rules.each == ()
    assert config.seen_by(0).tenant_rules == config.tenant_rules
