"""Checkpoints of a data directory: sign, list and verify them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from cordwood.disk import Files
from cordwood.errors import EvidenceMissing, EvidenceRefused, UnknownTopic
from cordwood.evidence.consistency import check_order, prove_consistency, verify_consistency
from cordwood.evidence.places import OpenedDirectory, Path, opened, parsed_key
from cordwood.host import process
from cordwood.integrity import Checkpoint, SigningKey, VerifierKey, open_checkpoint, unverified
from cordwood.storage.chain import (
    kept_chain,
    kept_checkpoints,
    read_note,
    sign_checkpoint,
    signing_key,
    verifier_key,
)
from cordwood.storage.meta import SHARED_TOPIC, is_shared
from cordwood.storage.readonly import ReadOnlyDirectory
from cordwood.tenancy import suggest
from cordwood.verify import GivenCheckpoint, LeafStatement, VerifyReport, statements_of, verify_directory


@dataclass(frozen=True, slots=True)
class SignedCheckpoint:
    """A checkpoint that was just signed. ``note`` is the text to keep elsewhere; ``size`` counts leaves."""

    topic: str
    partition: int
    size: int
    note: str


@dataclass(frozen=True, slots=True)
class ListedCheckpoint:
    """A checkpoint that is kept in the data directory, in the file at ``path``."""

    topic: str
    partition: int
    size: int
    next_offset: int
    leader_epoch: int
    path: str


@dataclass(frozen=True, slots=True)
class CheckpointList:
    """The key that verifies checkpoints of a data directory, None before the first, and the checkpoints."""

    key: VerifierKey | None
    checkpoints: list[ListedCheckpoint]


@dataclass(frozen=True, slots=True)
class CheckpointReport:
    """A checkpoint that holds, what was checked for it, and what the chain states about the partition."""

    checkpoint: Checkpoint
    topic: str
    partition: int
    report: VerifyReport
    statements: tuple[LeafStatement, ...]


def sign_checkpoints(
    path: Path, topic: str | None = None, *, files: Files | None = None
) -> list[SignedCheckpoint]:
    """Sign a checkpoint of each partition that has records, of *topic* or of every topic with a chain.

    It signs for the leaves that are on disk; `Log.checkpoint` writes those that are missing first, and
    `wait_for_leaves` waits for those that another process is about to write. The notes are kept in the data
    directory, durable on return; the key that signs is created on first use. For a topic in the shared log
    the shared log is signed for, which has one chain for all its topics.

    Raises:
        EvidenceMissing: If *topic* keeps no chain, or no topic does.
        EvidenceRefused: If a partition contradicts an earlier checkpoint. Nothing is signed for it.
        SigningUnavailable: If the package that signs is not installed.
        UnknownTopic: If there is no such topic.
    """
    with opened(path, files) as place:
        return list(_signed(place, topic))


def _signed(place: OpenedDirectory, topic: str | None) -> Iterator[SignedCheckpoint]:
    directory, files = place
    broker, key = directory.identity.uuid, None
    for name in chained_topics(directory, topic):
        for partition in range(directory.topics[name].partitions):
            with kept_chain(files, place.partition_path(name, partition)) as chain:
                if chain is None or not chain.head.size:
                    continue
                # The key is created here, once there is something to sign.
                key = key or _signing_key(place)
                format_ = directory.config_of(directory.topics[name].config).format
                known = (files, directory.path, broker, name, partition, chain, key, format_)
                yield SignedCheckpoint(name, partition, chain.head.size, sign_checkpoint(*known))


def _signing_key(place: OpenedDirectory) -> SigningKey:
    directory = place.directory
    return signing_key(place.files, directory.path, directory.identity.uuid, process.new_seed)


def chained_topics(directory: ReadOnlyDirectory, topic: str | None) -> list[str]:
    """Return the topics whose chains a checkpoint of *topic*, or of every topic, is about.

    Raises:
        EvidenceMissing: If *topic* keeps no chain, or no topic does.
        UnknownTopic: If there is no such topic.
    """
    chained = [
        name
        for name, entry in sorted(directory.topics.items())
        if directory.config_of(entry.config).chain and not is_shared(entry)
    ]
    if topic is None:
        if not chained:
            raise EvidenceMissing(
                "no topic keeps a chain; have one keep it with "
                "cordwood topic alter TOPIC --config cordwood.chain=true"
            )
        return chained
    if topic not in directory.topics:
        raise UnknownTopic.named(topic, suggestion=suggest(topic, directory.topics))
    if is_shared(directory.topics[topic]):
        # The shared log has one chain for all topics in it.
        topic = SHARED_TOPIC
    if topic not in chained:
        raise EvidenceMissing(
            f"topic {topic} keeps no chain; have it keep one with "
            f"cordwood topic alter {topic} --config cordwood.chain=true"
        )
    return [topic]


def list_checkpoints(path: Path, topic: str | None = None, *, files: Files | None = None) -> CheckpointList:
    """Return the verifier key and every checkpoint that was signed in the data directory at *path*.

    Of *topic* only, if it is given: for a topic in the shared log, those of the shared log. Checkpoints of a
    topic are in the order of their partition and size. Their signatures are not checked.

    Raises:
        MetadataDamaged: If a checkpoint or the key cannot be read.
    """
    found = []
    with opened(path, files) as (directory, files):
        key, topics = verifier_key(files, directory.path), directory.topics
        if topic is not None and topic in topics and is_shared(topics[topic]):
            topic = SHARED_TOPIC
        for name, entry in sorted(topics.items()):
            if topic not in (None, name):
                continue
            for kept in kept_checkpoints(files, directory.path, entry.id):
                said = unverified(read_note(files, kept))
                numbers = (kept.partition, kept.size, said.next_offset, said.leader_epoch)
                found.append(ListedCheckpoint(name, *numbers, kept.path))
    return CheckpointList(key, found)


def verify_checkpoint(
    path: Path, note: str, key: VerifierKey | str, *, name: str = "checkpoint", files: Files | None = None
) -> CheckpointReport:
    """Check a checkpoint that was kept elsewhere against the log: its signature, the tree and every frame.

    *note* is the text of the checkpoint, *key* the verifier key that the caller has from elsewhere, and
    *name* how findings call the note. Changes nothing, takes no lock, and may run beside the writer.

    Raises:
        EvidenceRefused: If the note is not signed by *key*, is about another log, or the log does not hold
            what it says; says what differs.
        SigningUnavailable: If the package that verifies is not installed.
    """
    (found,) = verify_checkpoints(path, [note], key, names=[name], files=files)
    return found


def verify_checkpoints(
    path: Path,
    notes: Sequence[str],
    key: VerifierKey | str,
    *,
    names: Sequence[str] | None = None,
    files: Files | None = None,
) -> list[CheckpointReport]:
    """Check several checkpoints against the log as `verify_checkpoint` does, and against each other.

    Of each log, the tree of every checkpoint must begin with that of the next smaller one, whatever the order
    of *notes*; `prove_consistency` shows the same to somebody who does not have the log. Each partition is
    read once. The reports are in the order of *notes*, which *names* are for findings.

    Raises:
        EvidenceRefused: As `verify_checkpoint`, or if two checkpoints contradict each other; names both.
        SigningUnavailable: If the package that verifies is not installed.
    """
    key = parsed_key(key)
    names = [f"checkpoint {number}" for number in range(1, len(notes) + 1)] if names is None else names
    given = [GivenCheckpoint(name, note, key) for name, note in zip(names, notes, strict=True)]
    said = [_opened(each) for each in given]
    by_origin: dict[str, list[int]] = {}
    for number in sorted(range(len(said)), key=lambda number: said[number].size):
        by_origin.setdefault(said[number].origin, []).append(number)
    for numbers in by_origin.values():
        for older, newer in pairwise(numbers):
            check_order(said[older], said[newer], (names[older], names[newer]))
    found: dict[int, CheckpointReport] = {}
    with opened(path, files) as place:
        for numbers in by_origin.values():
            held = _held(place, said[numbers[0]], [given[number] for number in numbers])
            for number in numbers:
                found[number] = replace(held, checkpoint=said[number])
            for older, newer in pairwise(numbers):
                proof = prove_consistency(path, notes[older], notes[newer], files=place.files)
                verify_consistency(proof, notes[older], notes[newer], key)
    return [found[number] for number in range(len(notes))]


def _opened(given: GivenCheckpoint) -> Checkpoint:
    try:
        return open_checkpoint(given.note, given.key)
    except EvidenceRefused as error:
        raise EvidenceRefused(f"{given.name}: {error}") from error


def _held(place: OpenedDirectory, said: Checkpoint, given: Sequence[GivenCheckpoint]) -> CheckpointReport:
    """Check the partition that *said* is about against every checkpoint of it in *given*."""
    topic, partition = place.place_of(said)
    report = verify_directory(
        place.files, place.directory.path, topic, checkpoints=given, partition=partition
    )
    statements = statements_of(place.files, place.partition_path(topic, partition))
    for finding in report.findings:
        if finding.severity == "corruption":
            what = str(finding).removeprefix("corruption: ")
            raise EvidenceRefused(f"partition {partition} of topic {topic} does not hold: {what}")
    return CheckpointReport(said, topic, partition, report, statements)
