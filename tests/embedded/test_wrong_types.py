"""Arguments of a wrong type get one sentence, and nothing is stored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import cordwood
from cordwood.errors import InvalidSetting, RecordRefused


@pytest.fixture
def log() -> Iterator[cordwood.Log]:
    with cordwood.open(":memory:") as opened:
        yield opened


@pytest.mark.parametrize("offset", ["0", 0.0, False, b"0"])
def test_an_expected_offset_that_is_no_whole_number_is_refused(log: cordwood.Log, offset: Any) -> None:
    """Not as an offset that is not the next one: a caller that tries again would never end."""
    topic = log.topic("t")
    with pytest.raises(RecordRefused, match="whole number"):
        topic.append(b"x", expected_offset=offset)
    assert topic.log_end_offset() == 0


def test_a_setting_that_is_no_text_is_refused_with_the_text_that_was_meant(log: cordwood.Log) -> None:
    wrong: Any = {"retention.ms": 1000}
    with pytest.raises(InvalidSetting, match="'1000'"):
        log.topic("t", config=wrong)
    assert log.topic("t", config={"retention.ms": "1000"}).partitions == 1
