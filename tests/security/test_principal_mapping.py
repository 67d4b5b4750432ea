"""``ssl.principal.mapping.rules`` as Kafka reads it, and stricter where Kafka ignores a mistake."""

from __future__ import annotations

import pytest

from cordwood.security import CertificateRefused, PrincipalMapping

ALICE = "CN=Alice,OU=ServiceUsers,O=Acme,C=US"
MANY = (
    "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,"
    "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L, "
    "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L,"
    "DEFAULT"
)


@pytest.mark.parametrize(
    ("rules", "name", "principal"),
    [
        ("DEFAULT", ALICE, ALICE),
        ("", ALICE, ALICE),
        (MANY, ALICE, "Alice"),
        (MANY, "CN=duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US", "duke@sme"),
        (MANY, "cn=Duke.X,OU=SME", "duke.x"),
        (MANY, "OU=JavaSoft,O=Sun Microsystems", "OU=JavaSoft,O=Sun Microsystems"),
        ("RULE:^CN=(.*?),.*$/$1/L", ALICE, "alice"),
        ("RULE:^CN=(.*?),.*$/$1/U", ALICE, "ALICE"),
        (" RULE:^CN=(.*?),.*$/$1/ , DEFAULT ", ALICE, "Alice"),
        ("RULE:^CN=(?<who>.*?),.*$/${who}/", ALICE, "Alice"),
        ("RULE:^CN=(.*?),.*$/a$10/", ALICE, "aAlice0"),
        ("RULE:^CN=(.*?),.*$/a$2/", ALICE, "a$2"),
        ("RULE:^CN=(.*?),.*$/$0/", ALICE, ALICE),
        (r"RULE:^CN=(.*?),.*$/\$1\/$1/", ALICE, "$1/Alice"),
        (r"RULE:^CN=a\/b$/slash/", "CN=a/b", "slash"),
        # As in Java, .* also matches the empty text at the end.
        ("RULE:.*/x/", "CN=a", "xx"),
        ("RULE:CN=b/no/,DEFAULT", "CN=bc", "CN=bc"),
    ],
)
def test_the_first_rule_that_matches_the_whole_name_decides(rules: str, name: str, principal: str) -> None:
    assert PrincipalMapping(rules).name_of(name) == principal


def test_a_name_that_no_rule_matches_is_nobody() -> None:
    for rules, name in (
        ("RULE:^CN=(.*?),OU=Staff$/$1/", ALICE),
        ("RULE:^(.*)$/x$1/", "CN=a\nb"),
        ("DEFAULT", ""),
    ):
        with pytest.raises(CertificateRefused):
            PrincipalMapping(rules).name_of(name)
    with pytest.raises(CertificateRefused):
        PrincipalMapping("RULE:^CN=.*$//").name_of("CN=x")


@pytest.mark.parametrize(
    "rules",
    [
        "default",
        "DEFAUL",
        "DEFAULT/L",
        "DEFAULT/U",
        "DEFAULT,,DEFAULT",
        "RULE:CN=(.*?),OU=ServiceUsers.*/$1",
        "rule:^CN=(.*?),OU=ServiceUsers.*$/$1/L,DEFAULT",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L/U,DEFAULT",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/L",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/LU",
        "RULE:^CN=(/x/",
        "RULE:^CN=x$/$1/",
        "RULE:^CN=(x)$/${who}/",
        "RULE:^CN=(x)$/$/",
    ],
)
def test_what_is_no_rule_is_refused(rules: str) -> None:
    """A rule that is ignored would leave its certificates to the rules after it."""
    with pytest.raises(ValueError, match=r"rule|pattern|group"):
        PrincipalMapping(rules)
