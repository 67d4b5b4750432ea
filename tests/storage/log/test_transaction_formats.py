"""The worked examples of transactions in docs/formats are the bytes that the log writes."""

from __future__ import annotations

import re
from pathlib import Path

from support.disks import image
from support.producing import DATA, DIRECTORY, SNAPSHOT, Bench, Sent
from support.transactions import end_transaction, send_in_transaction

from cordwood.disk.mark import decode_slots
from cordwood.formats import Marker, batch
from cordwood.formats.batch import BatchOptions

PAGES = Path(__file__).parents[3] / "docs/formats"


def block_with(page: str, word: str) -> list[str]:
    """Return the lines of the one block of a page that has *word*."""
    blocks: list[str] = re.findall(r"```text\n(.*?)```", (PAGES / page).read_text(), re.DOTALL)
    (found,) = (block for block in blocks if word in block)
    return found.splitlines()


def example() -> dict[str, bytes | None]:
    bench = Bench()
    log = bench.open()
    send_in_transaction(log, Sent(4000, 0, 0, (b"x", b"y")))
    end_transaction(log, 4000, committed=False)
    send_in_transaction(log, Sent(4000, 0, 2, (b"z",)))
    bench.close()
    return dict(image(bench.files, DATA))


def test_the_example_of_an_index_of_aborted_transactions_and_of_a_mark_are_their_bytes() -> None:
    files = example()
    entry, stable = (bytes.fromhex(line) for line in block_with("directory.md", "0000000000000fa0"))
    assert files[f"{DIRECTORY}/segments/00000000000000000000.txnindex"] == entry
    mark = files[f"{DIRECTORY}/mark"] or b""
    newest = decode_slots(mark)[0]
    start = 0 if decode_slots(mark[:512]) == [newest] else 512
    assert mark[start + 80 : start + 100] == stable


def test_the_example_of_producers_with_transactions_is_its_bytes() -> None:
    (line,) = block_with("directory.md", "producers.json  {")
    assert example()[SNAPSHOT] == line.removeprefix("producers.json  ").encode()


def test_the_example_of_a_marker_is_its_bytes() -> None:
    lines = block_with("batch.md", "producer id 4000")
    stored = bytes.fromhex("".join(re.split(r"  +", line)[0] for line in lines))
    made = batch.encode_marker(
        Marker(4000, 0, committed=True, coordinator_epoch=7), 1_000, BatchOptions(2, 0)
    )
    assert bytes(made) == stored
