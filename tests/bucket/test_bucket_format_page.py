"""docs/formats/bucket.md: the worked example is what an owner writes, byte for byte."""

from __future__ import annotations

import re
from functools import cache
from hashlib import sha256
from pathlib import Path

import google_crc32c
import msgspec
import pytest
from support.clocks import ManualClock
from support.pages import fenced
from support.shipped import files_in, never

from cordwood.bucket import BucketIdentity, LogManifest, LogOwner, PageRef, found, perform
from cordwood.bucket.attaching import is_ignored, is_overwritten
from cordwood.bucket.ownership.manifest import Departed, Freed
from cordwood.bucket.shipping import Shipper
from cordwood.bucket.state.body import BodyTable, FilePatch, ObjectRef, StoredStretch
from cordwood.bucket.state.pages import Page, PagedExtent, PagedFile
from cordwood.bucket.stores import MemoryStore
from cordwood.disk import DiskJournal, JournaledFiles, MemoryFiles, read_file, write_all
from cordwood.host import Host

PAGE = Path(__file__).parents[2] / "docs" / "formats" / "bucket.md"
NONCE = "0f" * 16


@cache
def stored() -> dict[str, bytes]:
    """Ship one small file, write pages, and return all objects."""
    store, inner = MemoryStore(), MemoryFiles()
    inner.make_directories("/data/meta")
    journal = DiskJournal(inner, "/data", is_ignored)
    files = JournaledFiles(inner, journal, at_once=is_overwritten)
    perform(store, found(BucketIdentity("0b" * 16, "2026-01-31T12:00:00.000000+00:00"), NONCE), never)
    shipper = Shipper(store, inner, "/data", journal, Host(ManualClock()), NONCE)
    shipper.take_over()
    file = files.open("/data/a.log", "create")
    write_all(file, 0, b"axe\n")
    file.sync()
    files.sync_directory("/data")
    shipper.ship()
    shipper.condense()
    assert read_file(files_in(store), "a.log") == b"axe\n"
    return {key: store.get(key).data for key in store.list("")}


def example(language: str, key: str) -> str:
    """Return the block of the example that follows the mention of *key*."""
    text = PAGE.read_text().split("## Worked example")[1].split(f"`{key}`")[1]
    return next(block for found, block in fenced(text) if found == language)


def test_every_object_of_the_example_is_named() -> None:
    text = PAGE.read_text().split("## Worked example")[1]
    for key, data in stored().items():
        assert f"`{key}`, {len(data)} bytes" in text, key


@pytest.mark.parametrize("key", ["cordwood.json", "manifest.json"])
def test_the_documents_are_what_the_code_writes(key: str) -> None:
    assert example("json", key) == stored()[key].decode() + "\n"


@pytest.mark.parametrize("key", ["w/00000000000000000002", f"m/1-{NONCE}-2"])
def test_the_bytes_are_what_the_code_writes(key: str) -> None:
    """The bytes come first on each line, then two spaces or more, then what they mean."""
    lines = example("text", key).splitlines()
    assert bytes.fromhex("".join(re.split(r"  +", line)[0] for line in lines)) == stored()[key]


def test_the_chain_of_hashes_is_that_of_the_example() -> None:
    first, second = stored()["w/00000000000000000001"], stored()["w/00000000000000000002"]
    assert second[40:72] == sha256(first).digest()
    assert f'"floor_hash":"{sha256(second).hexdigest()}"' in example("json", "manifest.json")
    assert second[-4:] == google_crc32c.value(second[:-4]).to_bytes(4, "big")


@pytest.mark.parametrize(
    "struct",
    [
        BucketIdentity,
        LogManifest,
        LogOwner,
        PageRef,
        Departed,
        Freed,
        BodyTable,
        ObjectRef,
        FilePatch,
        StoredStretch,
        Page,
        PagedFile,
        PagedExtent,
    ],
)
def test_every_field_is_on_the_page_in_its_order(struct: type[msgspec.Struct]) -> None:
    """Tables of arrays have the fields in the order of the array."""
    names = list(msgspec.structs.fields(struct))
    page = PAGE.read_text()
    tables = [re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) for table in page.split("\n\n")]
    assert [each.encode_name for each in names] in tables, struct.__name__
