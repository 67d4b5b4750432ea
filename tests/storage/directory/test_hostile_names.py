"""Directories from elsewhere: no name in their files leads out of them (S1, R6).

A backup may come from anybody. Whatever its metadata say, nothing outside of it and of the directory it is
restored to is read, changed or removed, and everything that is refused is refused by file and value.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import google_crc32c
import msgspec
import pytest
from support.commands import run

import cordwood
from cordwood.config.loading import load_broker_config
from cordwood.disk import posix as posix_files
from cordwood.disk.checked_json import write_metadata
from cordwood.disk.files import remove_tree
from cordwood.disk.posix import PosixFiles
from cordwood.errors import CordwoodError, MetadataDamaged
from cordwood.formats.batch import encode_records
from cordwood.interchange.importing import ImportSource, import_topic
from cordwood.storage.directory.data_directory import DataDirectory, Opening
from cordwood.storage.meta.catalogue import Catalogue, CatalogueEntry, DeletedEntry, TopicEntry
from cordwood.storage.meta.identity import mark_unclean
from cordwood.storage.sink.journal import Journal, journal_path
from cordwood.storage.sink.staging import StagedTarget, query_key
from cordwood.verify import verify_directory

FILES = PosixFiles()
NAMES = {
    "parent": "../../precious",
    "parent alone": "..",
    "here": ".",
    "nothing": "",
    "two parts": "a/b",
    "NUL": "a\0b",
    "long": "n" * 300,
    "absolute": "/precious",
    "newline": "orders\n",
    "no org": "orders@x",
    "backslash": "a\\b",
}
NUMBERS = {"negative": -1, "huge": 1 << 70, "past the end": 1 << 63}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a log in it, and one beside it that nobody may touch: made once, and copied."""
    path = tmp_path_factory.mktemp("made")
    (path / "precious" / "0").mkdir(parents=True)
    (path / "precious" / "kept").write_bytes(b"as it was")
    with cordwood.open(path / "data", sync="never") as log:
        log.topic("orders", config={"segment.bytes": "300"})
        for number in range(6):
            log.topic("orders").append(b"value %d" % number * 5)
        log.topic("orders").roll()
    return path


@pytest.fixture(autouse=True)
def unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """No power is cut here, and hundreds of small directories are synced for nothing."""
    monkeypatch.setattr(posix_files, "_sync_data", lambda number: None)
    monkeypatch.setattr(os, "fsync", lambda number: None)


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "place")


@pytest.fixture(autouse=True)
def untouched(place: Path) -> Iterator[None]:
    """Nothing in the directory beside is read-only by luck: it must be there as it was."""
    yield
    precious = place / "precious"
    assert sorted(path.name for path in precious.iterdir()) == ["0", "kept"]
    assert (precious / "kept").read_bytes() == b"as it was"
    assert list((precious / "0").iterdir()) == []


def data_of(place: Path) -> str:
    return str(place / "data")


def sealed(path: str, change: Callable[[dict[str, Any]], None]) -> None:
    """Change what a metadata file says, and give it the checksum of that."""
    body = msgspec.json.decode(Path(path).read_bytes())["body"]
    change(body)
    encoded = msgspec.json.encode(body)
    crc = f"{google_crc32c.value(encoded):08x}"
    Path(path).write_bytes(b'{"crc32c":"' + crc.encode() + b'","body":' + encoded + b"}")


def add_entries(place: Path, *entries: CatalogueEntry, marked: bool = True) -> None:
    """Add entries to the catalogue as its writer does, with or without the mark saying so."""
    mark = Path(data_of(place), "meta", "catalogue.mark")
    before = mark.read_bytes()
    with contextlib.closing(Catalogue.open(FILES, data_of(place))) as catalogue:
        catalogue.add(list(entries))
    if not marked:
        mark.write_bytes(before)
    mark_unclean(FILES, data_of(place))


def opened(place: Path, *, read_only: bool) -> None:
    """Open the directory and look at everything in it."""
    with cordwood.open(place / "data", read_only=read_only, create=False) as log:
        for name in log.topics:
            for number in range(log.entry(name).partitions):
                list(log.topic(name).read(number))


def refusals(place: Path, *, only_writer: bool = False, report_only: bool = False) -> list[str]:
    """Return what each way to use the directory says; each of them must refuse it, by one kind of error."""
    said = []
    before = {path: path.stat().st_mtime_ns for path in (place / "data").rglob("*") if path.name != "lock"}
    ways: dict[str, Callable[[], object]] = {
        "read-only": lambda: opened(place, read_only=True),
        "backup": lambda: cordwood.backup(data_of(place), place / "copy"),
        "restore": lambda: cordwood.restore(data_of(place), place / "restored"),
        "open": lambda: opened(place, read_only=False),
    }
    for name, way in ways.items():
        if only_writer and name in ("read-only",):
            continue
        if report_only and name == "backup":
            # What is wrong in the source is reported, and comes as it is.
            said += [
                f"{each.path}: {each.reason}"
                for each in cordwood.backup(data_of(place), place / "copy").damaged
            ]
            assert said, name
            continue
        with pytest.raises(MetadataDamaged) as refused:
            way()
        said.append(str(refused.value))
        assert not (place / "restored").exists()
        assert not (place / "restored.restoring").exists()
    after = {path: path.stat().st_mtime_ns for path in (place / "data").rglob("*") if path.name != "lock"}
    assert {path for path in before if path.is_file()} <= set(after), "files are gone from the directory"
    return said


def check_verify(place: Path, path: str) -> str:
    """Have verify report corruption of the file at *path*; return what it says."""
    report = verify_directory(FILES, data_of(place))
    found = [each for each in report.findings if each.severity == "corruption" and each.path == path]
    assert found, report.findings
    return str(found[0])


# --- the catalogue --------------------------------------------------------------------------------------


@pytest.mark.parametrize("marked", [True, False], ids=["marked", "past the mark"])
@pytest.mark.parametrize("deleted", [True, False], ids=["deleted", "there"])
@pytest.mark.parametrize("field", ["name", "id"])
@pytest.mark.parametrize("hostile", NAMES)
def test_a_catalogue_whose_topic_leads_elsewhere_is_refused_by_name(
    place: Path, hostile: str, field: str, deleted: bool, marked: bool
) -> None:
    """Deleting such a topic once removed the directory that its name led to."""
    bad = NAMES[hostile]
    if field == "id" and hostile == "no org":
        bad = "id of/none"
    entry = TopicEntry(bad, "an-id", 1) if field == "name" else TopicEntry("other", bad, 1)
    ended: list[CatalogueEntry] = [DeletedEntry(entry.id)] if deleted else []
    add_entries(place, entry, *ended, marked=marked)
    if field == "id":
        (place / "data" / "topics" / "other" / "0").mkdir(parents=True)
    path = f"{data_of(place)}/meta/catalogue.log"
    for said in refusals(place):
        assert path in said
        assert f"topic {field} {ascii(bad)[:20]}".rstrip("'") in said
    said = check_verify(place, path)
    assert bad in ("a\0b", "a\\b", "orders\n") or f'"{field}":"{bad}'[:20] in said


@pytest.mark.parametrize("count", [0, -3, 1 << 40])
def test_a_catalogue_with_an_impossible_number_of_partitions_is_refused(place: Path, count: int) -> None:
    add_entries(place, TopicEntry("other", "an-id", count))
    path = f"{data_of(place)}/meta/catalogue.log"
    for said in refusals(place):
        assert path in said
        assert f"{count} partitions of topic other" in said
    check_verify(place, path)


def test_a_backup_with_a_topic_that_leads_elsewhere_is_refused_as_such(place: Path) -> None:
    """The crafted backup that deleted outside of the directory it was restored to."""
    shutil.move(place / "data", place / "original")
    cordwood.backup(place / "original", place / "data")
    add_entries(place, TopicEntry("../../precious", "an-id", 1), DeletedEntry("an-id"))
    result = run("restore", data_of(place), "--data", place / "restored")
    assert result.exit_code == 4
    assert "'../../precious'" in result.stderr
    check_verify(place, f"{data_of(place)}/meta/catalogue.log")
    assert run("verify", "--data", data_of(place)).exit_code == 4


def test_names_that_are_allowed_on_disk_pass(place: Path) -> None:
    """Topics of tenants and of the broker itself, and names as long as they get."""
    names = ["orders@7", "__consumer_offsets", "__shared", "n" * 249, "a.b-c_d", "...", f"{'n' * 247}@7"]
    add_entries(place, *(TopicEntry(name, f"id-{at}", 1) for at, name in enumerate(names)))
    opened(place, read_only=False)
    with cordwood.open(place / "data") as log:
        assert set(names) <= set(log.topics)
    assert verify_directory(FILES, data_of(place)).sound


# --- partition.json, the chain, backup.json ---------------------------------------------------------------


def partition_path(place: Path, *names: str) -> str:
    return "/".join([data_of(place), "topics", "orders", "0", *names])


@pytest.mark.parametrize("field", ["topic", "topic_id"])
@pytest.mark.parametrize("hostile", NAMES)
def test_a_partition_whose_names_lead_elsewhere_is_refused_by_name(
    place: Path, hostile: str, field: str
) -> None:
    path = partition_path(place, "partition.json")
    bad = "a/b" if hostile == "no org" else NAMES[hostile]
    sealed(path, lambda body: body.update({field: bad}))
    # A file that no state names goes to quarantine, under the name that the state has for the topic.
    Path(partition_path(place, "segments", f"{77:020d}.log")).write_bytes(b"records of somebody")
    mark_unclean(FILES, data_of(place))
    for said in refusals(place, report_only=True):
        assert path in said
    check_verify(place, path)


@pytest.mark.parametrize(
    "field", ["partition", "active_base", "swapping", "base", "next_offset", "truncating"]
)
@pytest.mark.parametrize("hostile", NUMBERS)
def test_a_partition_with_numbers_that_no_file_has_is_refused(place: Path, hostile: str, field: str) -> None:
    path, bad = partition_path(place, "partition.json"), NUMBERS[hostile]

    def change(body: dict[str, Any]) -> None:
        if field in ("base", "next_offset"):
            body["sealed"][0][field] = bad
        elif field == "truncating":
            body[field] = {"base": bad, "position": 0, "next_offset": 0, "copied": True}
        else:
            body[field] = bad

    sealed(path, change)
    mark_unclean(FILES, data_of(place))
    for said in refusals(place, report_only=True):
        assert path in said
    check_verify(place, path)


@pytest.mark.parametrize("hostile", NAMES)
def test_a_chain_whose_topic_id_leads_elsewhere_is_refused_by_name(place: Path, hostile: str) -> None:
    """Checkpoints are kept under that id."""
    path = partition_path(place, "chain", "head")
    bad = "a/b" if hostile == "no org" else NAMES[hostile]
    sealed(path, lambda body: body.update({"topic_id": bad}))
    result = run("checkpoint", "create", "--data", data_of(place))
    assert result.exit_code != 0
    assert path in result.stderr
    report = cordwood.backup(data_of(place), place / "copy")
    assert [each.path for each in report.damaged] == [path]
    with pytest.raises(MetadataDamaged) as refused:
        cordwood.restore(data_of(place), place / "restored")
    assert path in str(refused.value)
    check_verify(place, path)


@pytest.mark.parametrize("field", ["topic", "topic_id", "partition"])
@pytest.mark.parametrize("hostile", NAMES)
def test_a_backup_whose_record_leads_elsewhere_is_refused_by_name(
    place: Path, hostile: str, field: str
) -> None:
    cordwood.backup(data_of(place), place / "copy")
    path = str(place / "copy" / "meta" / "backup.json")
    bad: object = "a/b" if hostile == "no org" else NAMES[hostile]
    bad = -1 if field == "partition" else bad
    sealed(path, lambda body: body["partitions"][0].update({field: bad}))
    with pytest.raises(MetadataDamaged) as refused:
        cordwood.backup(data_of(place), place / "copy")
    assert path in str(refused.value)
    with pytest.raises(MetadataDamaged) as refused:
        cordwood.restore(place / "copy", place / "restored", keep_id=True)
    assert path in str(refused.value)
    report = verify_directory(FILES, str(place / "copy"))
    assert [each.path for each in report.findings if each.severity == "corruption"] == [path]


# --- what queries publish -----------------------------------------------------------------------------------


def write_journal(place: Path, change: Callable[[dict[str, Any]], None]) -> str:
    """Write the journal of a query with an open intent, after *change*, and return its path."""
    with contextlib.closing(
        DataDirectory(Opening(FILES, data_of(place), load_broker_config()[0], create=False))
    ) as directory:
        entry = directory.topics["orders"]
        writer = directory.publisher.stage("query", 0, "task")
        writer.append(
            StagedTarget("orders", entry.id, 0), bytearray(encode_records([(None, b"staged")], 1000))
        )
        shares = writer.finish()
    path = journal_path(data_of(place), "query")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    write_metadata(FILES, path, Journal(query="query"))

    def with_intent(body: dict[str, Any]) -> None:
        places = [{"topic": "orders", "topic_id": entry.id, "partition": 0, "base_offset": 6}]
        body["intent"] = {"batch": 0, "shares": msgspec.to_builtins(shares), "places": places}
        change(body)

    sealed(path, with_intent)
    mark_unclean(FILES, data_of(place))
    return path


JOURNALS: dict[str, Callable[[dict[str, Any], str], None]] = {
    "share": lambda body, bad: body["intent"]["shares"][0].update(name=bad),
    "section": lambda body, bad: body["intent"]["shares"][0]["sections"][0].update(topic=bad),
    "section's id": lambda body, bad: body["intent"]["shares"][0]["sections"][0].update(topic_id=bad),
    "place": lambda body, bad: body["intent"]["places"][0].update(topic=bad),
    "place's id": lambda body, bad: body["intent"]["places"][0].update(topic_id=bad),
    "partition": lambda body, bad: body["intent"]["places"][0].update(partition=-1),
    "batch": lambda body, bad: body["intent"].update(batch=-1),
    "query": lambda body, bad: body.update(query=bad),
}


@pytest.mark.parametrize("kind", JOURNALS)
@pytest.mark.parametrize("hostile", NAMES)
def test_a_journal_whose_names_lead_elsewhere_is_refused_by_name(
    place: Path, hostile: str, kind: str
) -> None:
    bad = "a/b" if hostile == "no org" else NAMES[hostile]
    path = write_journal(place, lambda body: JOURNALS[kind](body, bad))
    with pytest.raises(MetadataDamaged) as refused:
        opened(place, read_only=False)
    assert path in str(refused.value)
    report = cordwood.backup(data_of(place), place / "copy")
    assert [each.path for each in report.damaged] == [path]
    with pytest.raises(MetadataDamaged) as refused:
        cordwood.restore(data_of(place), place / "restored")
    assert path in str(refused.value)
    check_verify(place, path)


# --- links and pipes ------------------------------------------------------------------------------------


LINKED = {
    "meta": "meta",
    "lock": "meta/lock",
    "catalogue": "meta/catalogue.log",
    "catalogue's mark": "meta/catalogue.mark",
    "topics": "topics",
    "topic": "topics/orders",
    "partition": "topics/orders/0",
    "partition.json": "topics/orders/0/partition.json",
    "mark": "topics/orders/0/mark",
    "segments": "topics/orders/0/segments",
    "segment": f"topics/orders/0/segments/{0:020d}.log",
    "chain": "topics/orders/0/chain",
    "leaves": "topics/orders/0/chain/leaves",
    "tmp": "tmp",
    "deleted topic": "tmp/an-id.deleted",
    "quarantine": "quarantine",
    "sink": "tmp/sink",
    "batch": f"tmp/sink/{query_key('query')}/0",
    "keys": "meta/keys",
    "checkpoints": "meta/checkpoints/an-id",
}


@pytest.mark.parametrize("what", LINKED)
@pytest.mark.parametrize("kind", ["elsewhere", "moved", "pipe"])
def test_what_is_neither_file_nor_directory_is_refused_by_name(place: Path, what: str, kind: str) -> None:
    """A link leads out of the directory; a pipe holds up whoever opens it, for ever."""
    path = place / "data" / LINKED[what]
    if kind == "moved" and path.exists():
        # It leads to what was there, so that nothing but the link gives it away.
        shutil.move(path, place / "moved")
        path.symlink_to(place / "moved")
    else:
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind == "pipe":
            os.mkfifo(path)
        else:
            path.symlink_to(place / "precious")
    if what != "meta":
        (place / "data" / "meta" / "clean").unlink(missing_ok=True)
    of_partition = LINKED[what].startswith("topics/orders/")
    for_writers = LINKED[what].startswith(("tmp", "quarantine", "meta/keys", "meta/checkpoints"))
    for said in refusals(place, only_writer=for_writers, report_only=of_partition):
        assert str(path) in said
        assert "neither a file nor a directory" in said
    check_verify(place, str(path))


def test_removing_a_tree_removes_links_and_not_what_they_lead_to(place: Path) -> None:
    tree = place / "tree"
    (tree / "below").mkdir(parents=True)
    (tree / "below" / "file").write_bytes(b"")
    (tree / "below" / "link").symlink_to(place / "precious")
    (tree / "link").symlink_to(place / "precious" / "kept")
    os.mkfifo(tree / "pipe")
    remove_tree(FILES, str(tree))
    assert not tree.exists()
    (place / "alone").symlink_to(place / "precious")
    remove_tree(FILES, str(place / "alone"))
    assert not (place / "alone").is_symlink()


def test_a_data_directory_may_itself_be_a_link(place: Path) -> None:
    (place / "link").symlink_to(place / "data")
    with cordwood.open(place / "link") as log:
        assert log.topics == ["orders"]
    assert verify_directory(FILES, str(place / "link")).sound


# --- names that are long and allowed ----------------------------------------------------------------------


def test_a_torn_tail_of_a_topic_with_the_longest_name_is_quarantined(place: Path) -> None:
    """The name of the copy is made of the topic's, and no file system takes one of more than 255 bytes."""
    name = "n" * 249
    with cordwood.open(place / "data") as log:
        log.topic(name).append(b"kept")
        topic_id = log.entry(name).id
    segment = place / "data" / "topics" / name / "0" / "segments" / f"{0:020d}.log"
    with segment.open("ab") as file:
        file.write(b"torn")
    (segment.parent / f"{900:020d}.log").write_bytes(b"records of somebody")
    mark_unclean(FILES, data_of(place))
    with cordwood.open(place / "data") as log:
        assert [record.value for record in log.topic(name).read(0)] == [b"kept"]
    names = sorted(path.name for path in (place / "data" / "quarantine").iterdir())
    assert len(names) == 2
    assert all(each.startswith(f"{topic_id}-0-") for each in names)


def test_a_topic_with_the_longest_name_is_imported(place: Path) -> None:
    name = "n" * 249
    source = place / "kafka"
    assert run("export", source, "-t", "orders", "--to", "kafka", "--data", data_of(place)).exit_code == 0
    with contextlib.closing(
        DataDirectory(Opening(FILES, data_of(place), load_broker_config()[0], create=False))
    ) as directory:
        report = import_topic(
            FILES, directory, ImportSource("kafka", str(source)), name, unique="1", now_ms=0
        )
    assert report.records == 6
    with cordwood.open(place / "data") as log, pytest.raises(CordwoodError):
        log.topic("n" * 250)


@pytest.mark.parametrize("name", ["meta/lock", "meta/catalogue.log", "topics/orders/0/mark"])
def test_a_file_that_is_linked_from_elsewhere_is_never_changed(place: Path, name: str) -> None:
    """A link is a second name: what is written to one is in the other."""
    linked, diary = place / "data" / name, place / "diary"
    diary.write_bytes(linked.read_bytes() + b"mine")
    kept = diary.read_bytes()
    linked.unlink()
    os.link(diary, linked)

    def change() -> None:
        with cordwood.open(place / "data") as log:
            log.topic("orders").append(b"more")
            log.topic("another").append(b"more")

    with pytest.raises(CordwoodError, match="linked from elsewhere"):
        change()
    assert diary.read_bytes() == kept


def test_a_broker_refuses_a_topic_whose_id_no_client_could_be_told(place: Path) -> None:
    add_entries(place, TopicEntry("odd", "id-9", 1, {}))
    with pytest.raises(MetadataDamaged, match=r"topic odd has the id 'id-9': expected a UUID"):
        cordwood.Broker(place / "data")
