"""Signed checkpoints of a data directory: the signing key, and every checkpoint ever signed.

``meta/keys/checkpoint.key`` is the private key, readable by its owner only; ``checkpoint.pub`` beside it is
the public key that verifiers pin. ``meta/checkpoints/<topic id>/<partition>-<size>.note`` are never removed.
They are stored by topic id, because a deleted topic and a later topic of the same name are different logs.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from hashlib import sha256
from typing import NamedTuple

from cordwood.disk import Files, join, parent, read_file, write_all, write_atomically
from cordwood.errors import EvidenceRefused, MetadataDamaged
from cordwood.integrity import Checkpoint, SigningKey, VerifierKey, open_checkpoint, origin_of, unverified
from cordwood.storage.chain.files import KeptChain

_NAME = re.compile(r"(\d{1,10})-(\d{1,19})\.note", re.ASCII)


class KeptCheckpoint(NamedTuple):
    """A stored checkpoint, described by the name of its file."""

    partition: int
    size: int
    path: str


# --- the key --------------------------------------------------------------------------------------


def key_path(data: str) -> str:
    """Return the path of the private key."""
    return join(data, "meta", "keys", "checkpoint.key")


def verifier_path(data: str) -> str:
    """Return the path of the public key."""
    return join(data, "meta", "keys", "checkpoint.pub")


def verifier_key(files: Files, data: str) -> VerifierKey | None:
    """Return the public key of this directory, None if nothing was signed yet.

    Raises:
        MetadataDamaged: If it cannot be read.
    """
    path = verifier_path(data)
    if not files.exists(path):
        return None
    try:
        return VerifierKey.parse(read_file(files, path).decode().strip())
    except (EvidenceRefused, UnicodeDecodeError) as error:
        raise MetadataDamaged(path, f"is not a verifier key: {error}") from None


def signing_key(files: Files, data: str, broker: str, new_seed: Callable[[], bytes]) -> SigningKey:
    """Return the signing key; create it from *new_seed* under the name *broker* on first use. Durable.

    Only its owner can read the file. Several processes may call this at once: one key is created.

    Raises:
        MetadataDamaged: If the key is missing or damaged although something was signed with it: a new key
            would look like another signer.
        SigningUnavailable: If the signing library is not installed.
    """
    path = key_path(data)
    known = verifier_key(files, data)
    if not files.exists(path):
        if known is not None:
            raise MetadataDamaged(path, f"is missing, but {verifier_path(data)} says that there was one")
        seed = new_seed()
        text = SigningKey(broker, seed).private_text()
        for directory in (join(data, "meta", "keys"), join(data, "meta", "checkpoints")):
            files.make_directories(directory)
        files.sync_directory(join(data, "meta"))
        _create_key(files, path, f"{path}.{sha256(seed).hexdigest()[:16]}", f"{text}\n".encode())
    key = _read_key(files, path)
    if known is None:
        # Written after the private key: after a crash in between, the public key is derived and written
        # again.
        write_atomically(files, verifier_path(data), f"{key.verifier}\n".encode())
    elif known != key.verifier:
        raise MetadataDamaged(path, f"is not the key that {verifier_path(data)} is of")
    return key


def _create_key(files: Files, path: str, temporary: str, data: bytes) -> None:
    """Create the file unless another process did it first. Durable on return."""
    try:
        with contextlib.closing(files.open(temporary, "create_private")) as file:
            write_all(file, 0, data)
            file.sync()
        # Unlike a rename, a link does not replace an existing file.
        with contextlib.suppress(FileExistsError):
            files.link(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            files.unlink(temporary)
    files.sync_directory(parent(path))


def _read_key(files: Files, path: str) -> SigningKey:
    try:
        return SigningKey.parse(read_file(files, path).decode().strip())
    except (EvidenceRefused, UnicodeDecodeError):
        # Raised without its cause, whose traceback could contain the secret.
        raise MetadataDamaged(path, "is not a signing key") from None


# --- checkpoints ----------------------------------------------------------------------------------


def kept_checkpoints(
    files: Files, data: str, topic_id: str, partition: int | None = None
) -> list[KeptCheckpoint]:
    """Return the stored checkpoints of a topic, or of one of its partitions, smallest first."""
    directory = join(data, "meta", "checkpoints", topic_id)
    found = []
    for name in files.list(directory) if files.exists(directory) else ():
        if match := _NAME.fullmatch(name):
            kept = KeptCheckpoint(int(match[1]), int(match[2]), join(directory, name))
            if partition is None or kept.partition == partition:
                found.append(kept)
    return sorted(found)


def read_note(files: Files, kept: KeptCheckpoint) -> str:
    """Return the signed note of *kept*.

    Raises:
        MetadataDamaged: If the note is not the checkpoint that its file name states.
    """
    try:
        note = read_file(files, kept.path).decode()
        if unverified(note).size == kept.size:
            return note
        reason = "has another size than in its name"
    except (EvidenceRefused, UnicodeDecodeError) as error:
        reason = f"is not a checkpoint: {error}"
    raise MetadataDamaged(kept.path, reason)


def signed_up_to(files: Files, data: str, topic_id: str, partition: int) -> int:
    """Return the offset below which all records are covered by a checkpoint, 0 without one.

    Truncating the log below it contradicts a signed checkpoint, so the caller must ask for that explicitly.
    """
    return max(
        (
            unverified(read_note(files, kept)).next_offset
            for kept in kept_checkpoints(files, data, topic_id, partition)
        ),
        default=0,
    )


def sign_checkpoint(
    files: Files,
    data: str,
    broker: str,
    topic: str,
    partition: int,
    chain: KeptChain,
    key: SigningKey,
    record_format: str,
) -> str:
    """Sign the current tree, store the note and return it. Durable on return.

    Raises:
        EvidenceRefused: If an earlier checkpoint is not a prefix of the tree: signing both would confirm two
            different histories.
    """
    head = chain.head
    checkpoint = Checkpoint(
        origin=origin_of(broker, topic, partition),
        size=head.size,
        root=bytes.fromhex(head.root),
        chain_head=bytes.fromhex(head.chain_head),
        leader_epoch=head.leader_epoch,
        next_offset=head.next_offset,
        record_format=record_format,
    )
    kept = kept_checkpoints(files, data, head.topic_id, partition)
    if kept:
        before = open_checkpoint(read_note(files, kept[-1]), key.verifier)
        difference = difference_to(chain, before)
        if difference is not None:
            raise EvidenceRefused(
                f"nothing was signed: partition {partition} of topic {topic} is not what {kept[-1].path} "
                f"signs for: {difference}"
            )
    directory = join(data, "meta", "checkpoints", head.topic_id)
    for gained in files.make_directories(directory):
        files.sync_directory(gained)
    note = checkpoint.signed(key)
    write_atomically(files, join(directory, f"{partition}-{checkpoint.size}.note"), note.encode())
    return note


def difference_to(chain: KeptChain, checkpoint: Checkpoint) -> str | None:
    """Return how the tree differs from *checkpoint*, None if the checkpoint is a prefix of the tree."""
    if checkpoint.size > chain.head.size:
        return f"it has {chain.head.size} leaves, the checkpoint {checkpoint.size}"
    found = chain.root(checkpoint.size)
    if found != checkpoint.root:
        return (
            f"its first {checkpoint.size} leaves have the root {found.hex()}, "
            f"in the checkpoint it is {checkpoint.root.hex()}"
        )
    if chain.consistency_path(checkpoint.size, checkpoint.root) is None:
        return f"its first {checkpoint.size} leaves are not the beginning of the {chain.head.size} it has"
    return None
