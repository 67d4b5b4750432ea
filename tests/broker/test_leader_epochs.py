"""Leader epochs: which one a client must name, which one an offset has, where each ends."""

from __future__ import annotations

import random

import pytest
from support.seeds import seed_or

from cordwood.broker.leader_epochs import NO_EPOCH, check_leader_epoch, epoch_at, epoch_end
from cordwood.errors import LeaderEpochFenced, LeaderEpochUnknown
from cordwood.storage.log.state import Epoch

EPOCHS = [Epoch(2, 10), Epoch(3, 14), Epoch(7, 14), Epoch(8, 20)]


@pytest.mark.parametrize("current", [0, 1, 5])
def test_a_client_must_name_the_current_epoch_or_none(current: int) -> None:
    check_leader_epoch(current, current)
    check_leader_epoch(NO_EPOCH, current)
    for older in range(current):
        with pytest.raises(LeaderEpochFenced) as fenced:
            check_leader_epoch(older, current)
        assert (fenced.value.given, fenced.value.current) == (older, current)
    for newer in (current + 1, 2**31 - 1):
        with pytest.raises(LeaderEpochUnknown):
            check_leader_epoch(newer, current)
    with pytest.raises(LeaderEpochFenced):
        check_leader_epoch(-2, current)


@pytest.mark.parametrize(("offset", "epoch"), [(9, 2), (10, 2), (13, 2), (14, 7), (19, 7), (20, 8), (99, 8)])
def test_an_offset_has_the_epoch_it_was_appended_under(offset: int, epoch: int) -> None:
    assert epoch_at(EPOCHS, offset) == epoch


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (-7, (-1, -1)),
        (-1, (-1, -1)),
        # Older than what the log has of epochs: it ends where those begin.
        (0, (0, 10)),
        (1, (1, 10)),
        (2, (2, 14)),
        # An epoch without records is there, and ends where it begins.
        (3, (3, 14)),
        (5, (3, 14)),
        (7, (7, 20)),
        (8, (8, 25)),
        (9, (-1, -1)),
    ],
)
def test_an_epoch_ends_where_the_next_one_begins(asked: int, answer: tuple[int, int]) -> None:
    assert epoch_end(EPOCHS, asked, 25) == answer


def test_the_end_of_an_epoch_is_the_first_offset_of_a_later_one() -> None:
    """Compared with the plain definition over random lists of epochs."""
    seed = seed_or(20_260_301)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(300):
        numbers = sorted(rng.sample(range(20), rng.randint(1, 5)))
        starts = sorted(rng.randint(0, 30) for _ in numbers)
        epochs = [Epoch(*each) for each in zip(numbers, starts, strict=True)]
        end = starts[-1] + rng.randint(0, 5)
        for asked in range(numbers[-1] + 1):
            later = [each.start_offset for each in epochs if each.epoch > asked]
            at_most = [each.epoch for each in epochs if each.epoch <= asked]
            expected = (max(at_most, default=asked), later[0] if later else end)
            assert epoch_end(epochs, asked, end) == expected
