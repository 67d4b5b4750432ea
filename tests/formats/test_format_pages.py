"""docs/formats: the worked example of each page is what the code writes, byte for byte."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cordwood.formats import batch
from cordwood.formats.per_record import frame, kimberlite, laminarmq, rustlog
from cordwood.formats.shared import rafka
from cordwood.formats.shared.envelope import EnvelopeKind, Owner, read_envelope, seal
from cordwood.formats.shared.owners import pack_entry
from cordwood.formats.shared.rafka import OffsetIndexEntry
from cordwood.formats.shared.topic_hashing import topic_hash_bytes

PAGES = Path(__file__).parents[2] / "docs" / "formats"
HASH = int.from_bytes(bytes(range(1, 17)), "little")
FIRST = kimberlite.encode_record(0, 1_700_000_000_123_456, b"first", kimberlite.NO_HASH, tenant=3, stream=5)
LAMINARMQ = laminarmq.encode_record(1_700_000_000_123, b"k", b"value", [("trace", b"1")])
ORDERS = Owner(7, topic_hash_bytes(7, "orders"), 0)


def shared() -> bytes:
    content = bytearray(batch.encode_records([(b"k", b"v")], now_ms=1_000))
    batch.place(content, 0, 40, 0)
    sealed = seal(EnvelopeKind.RECORDS, ORDERS, 1000, 40, 1, 1_000, 0, content)
    return bytes(sealed) + pack_entry(read_envelope(sealed), content, 1000, 0)


EXAMPLES = {
    "rustlog": rustlog.encode_record(7, 1_700_000_000_123_456, b"hello"),
    "frame": frame.encode_record(7, 1_700_000_000_123, b"k", b"value"),
    "kimberlite": FIRST,
    "laminarmq": LAMINARMQ,
    "rafka": rafka.encode_record(b"first") + rafka.encode_entry(OffsetIndexEntry(2, 4, 5, 9, HASH, 3)),
    "shared": shared(),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_worked_example_is_what_the_code_writes(name: str) -> None:
    page = (PAGES / f"{name}.md").read_text()
    block = page.split("## Worked example")[1].split("```text\n")[1].split("```")[0]
    written = "".join(re.split(r"  +", line)[0] for line in block.splitlines())
    assert bytes.fromhex(written) == EXAMPLES[name]


def test_hashes_and_entries_in_the_text_are_right() -> None:
    assert f"`{ORDERS}`" in (PAGES / "shared.md").read_text()
    page = (PAGES / "kimberlite.md").read_text()
    assert f"The next record has `{kimberlite.parse_record(FIRST).hash(FIRST).hex()}`" in page
    entry = laminarmq.index_record(LAMINARMQ, 0).hex()
    found = re.search(
        r"`(\w{8} \w{8})` \(checksum\), `(\w{8})` .*, `(\w{8})`", (PAGES / "laminarmq.md").read_text()
    )
    assert found is not None
    assert "".join(found.groups()).replace(" ", "") == entry


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_page_says_what_is_torn_what_is_corrupt_and_what_is_bad(name: str) -> None:
    page = (PAGES / f"{name}.md").read_text()
    for heading in ("## Worked example", "## Torn and corrupt", "## Downsides"):
        assert heading in page
    assert "┌" in page
    assert "|---" in page
