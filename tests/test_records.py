"""The shared nouns."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cordwood
from cordwood import OffsetRange, Record

ranges = st.tuples(st.integers(0, 50), st.integers(0, 50)).map(lambda pair: OffsetRange(min(pair), max(pair)))


@given(ranges, ranges)
def test_the_intersection_of_ranges_is_that_of_their_offsets(a: OffsetRange, b: OffsetRange) -> None:
    assert list(a.intersection(b)) == [offset for offset in a if offset in b]
    assert len(a) == len(list(a))


@pytest.mark.parametrize(("start", "end"), [(-1, 0), (5, 4)])
def test_a_range_that_runs_backwards_or_below_zero_is_refused(start: int, end: int) -> None:
    with pytest.raises(ValueError, match="0 <= start <= end"):
        OffsetRange(start, end)


def test_a_record_cannot_be_changed() -> None:
    record = Record(0, 0, None, b"v")
    with pytest.raises(AttributeError):
        record.value = b"other"  # type: ignore[misc]


def test_everything_public_is_there_and_documented() -> None:
    for name in cordwood.__all__:
        assert getattr(cordwood, name).__doc__ or name == "Header"


def test_a_prompt_completes_every_public_name_and_no_other() -> None:
    """``dir(cordwood)`` has names that were not used, and so not imported, yet."""
    assert dir(cordwood) == sorted(cordwood.__all__)
    assert {"open", "Log", "Topic", "Scan", "Broker", "aio", "errors", "__version__"} <= set(dir(cordwood))
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", cordwood.__version__)
