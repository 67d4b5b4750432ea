"""``cordwood.verify``: checksums are compared on the first read of a frame, or on every read."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.logs import DATA, TickingClock, open_log, segment_file

import cordwood
from cordwood.disk import MemoryFiles, read_file
from cordwood.errors import ConfigError, CorruptRange
from cordwood.formats.registry import FORMATS

#: The byte of the first record that changes after it was read.
VALUE = b"the value that changes"

READS: dict[str, Callable[[cordwood.Log], object]] = {
    "read": lambda log: list(log.topic("t").read()),
    "scan": lambda log: list(log.scan("t").batches()),
    "fetch": lambda log: log._readable("t", 0).read(0, 1 << 20).runs[0].data,
}


def change(files: MemoryFiles) -> None:
    """Change one byte of the value, as a failing disk does after the page was evicted."""
    path = segment_file("t", 0, 0)
    position = read_file(files, path).index(VALUE)
    file = files.open(path, "write")
    file.write_at(position, [b"T"])
    file.close()


def filled(name: str, verify: str, *, sealed: bool) -> tuple[MemoryFiles, cordwood.Log]:
    files = MemoryFiles()
    log = open_log(files)
    topic = log.topic(
        "t", config={"cordwood.format": name, "cordwood.verify": verify, "cordwood.chain": "false"}
    )
    topic.append(VALUE)
    topic.append(b"another")
    if sealed:
        log.data_directory.partitions.own("t", 0).roll()
    return files, log


@pytest.mark.parametrize("beside", [False, True], ids=["writer", "beside"])
@pytest.mark.parametrize("sealed", [False, True], ids=["active", "sealed"])
@pytest.mark.parametrize("way", READS)
@pytest.mark.parametrize("name", sorted(FORMATS))
def test_with_every_a_byte_that_changes_after_a_read_is_found_by_the_next_one(
    name: str, way: str, sealed: bool, beside: bool
) -> None:
    files, log = filled(name, "every", sealed=sealed)
    reader = open_log(files, read_only=True) if beside else log
    READS[way](reader)
    change(files)
    with pytest.raises(CorruptRange) as found:
        READS[way](reader)
    assert found.value.path == segment_file("t", 0, 0)


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_with_first_it_is_found_by_the_first_read_after_the_next_open(name: str) -> None:
    """The default: the verified range of each segment is remembered until the log is closed."""
    files, log = filled(name, "first", sealed=False)
    READS["fetch"](log)
    change(files)
    READS["fetch"](log)
    log.data_directory.abandon()
    with open_log(files, read_only=True) as again, pytest.raises(CorruptRange):
        READS["fetch"](again)


def test_the_setting_applies_at_once_when_it_is_altered() -> None:
    files, log = filled("batch", "first", sealed=True)
    READS["fetch"](log)
    change(files)
    READS["fetch"](log)
    log.alter_topic("t", config={"cordwood.verify": "every", "cordwood.chain": "false"})
    with pytest.raises(CorruptRange):
        READS["fetch"](log)


# --- index_cache ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("given", "kept"), [("all", 0), ("none", 0), (2, 2), (7, 5), (None, 0)])
def test_the_index_cache_is_an_argument_of_open(given: int | str | None, kept: int) -> None:
    """Without a limit there is nothing to evict, and no count."""
    files = MemoryFiles()
    with cordwood.open(DATA, files=files, clock=TickingClock(), index_cache=given) as log:  # type: ignore[arg-type]
        topic = log.topic("t", config={"cordwood.chain": "false"})
        partition = log.data_directory.partitions.own("t", 0)
        for number in range(5):
            topic.append(b"%d" % number)
            partition.roll()
        assert [record.value for record in topic.read()] == [b"%d" % number for number in range(5)]
        assert len(log.data_directory.context.open_files.indexes) == kept
        in_memory = [segment._index is not None for segment in partition.view.segments[:-1]]
        assert sum(in_memory) == (kept or (0 if given == "none" else 5))


@pytest.mark.parametrize("given", [-1, "some", True, "3"])
def test_an_index_cache_that_is_no_number_of_segments_is_refused(given: object) -> None:
    with pytest.raises(ConfigError, match="all, none or a number of segments"):
        cordwood.open(":memory:", index_cache=given)  # type: ignore[arg-type]
