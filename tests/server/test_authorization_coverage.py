"""What is compared with Apache Kafka's authorizer (`make interop`) is everything that has rights."""

from __future__ import annotations

from interop.authorization import CREATING, NOT_ASKED, OTHERWISE, PRINCIPALS, cases, creations
from support.authorization_table import TABLE
from support.tenant_requests import spoken

from cordwood.protocol.apis import APIS, ApiKey

EVERYTHING = {key: spoken(key) for key in ApiKey}


def test_every_api_in_every_version_is_compared_with_apache_kafka() -> None:
    asked = list(cases(EVERYTHING))
    for key in APIS:
        versions = {case.version for case in asked if case.key is key}
        assert versions == set(EVERYTHING[key]), key
    names = [(case.key, case.version, case.about) for case in asked]
    assert len(set(names)) == len(names)
    print(f"{len(asked)} requests of {len(APIS)} APIs for {len(PRINCIPALS)} principals")


def test_every_kind_of_request_is_compared_with_apache_kafka_unless_there_is_a_reason() -> None:
    """A row that is added to the table is asked, or this fails."""
    asked = {f"{case.key.name} {case.about}" for case in cases(EVERYTHING)}
    created = {f"{case.key.name} {case.about}" for case in creations(EVERYTHING)}
    assert any(name.startswith(CREATING) for name in created)
    for row in TABLE:
        if row.what and str(row) not in NOT_ASKED and str(row) != CREATING:
            assert OTHERWISE.get(str(row), str(row)) in asked, row
    assert NOT_ASKED.keys() | OTHERWISE.keys() | {CREATING} <= {str(row) for row in TABLE}
    assert APIS[ApiKey.INIT_PRODUCER_ID].advertised.last < 6, "two phases are announced, so they are asked"


def test_every_request_can_be_made_for_every_principal() -> None:
    for case in [*cases(EVERYTHING), *creations(EVERYTHING)]:
        assert case.body(bytes(16), "allowed") is not None, case
