"""Proofs: small, complete, and refused by two verifiers once anything in them is off by a bit."""

from __future__ import annotations

import base64
import importlib.util
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from integrity.test_merkle import hundred_million
from support.data_directory import frame

from cordwood.errors import EvidenceRefused
from cordwood.evidence import frame_offsets
from cordwood.integrity import merkle, proof
from cordwood.integrity.checkpoint import Checkpoint, origin_of
from cordwood.integrity.note import SigningKey

EXAMPLE = Path(__file__).parents[2] / "examples" / "verify_proof.py"
KEY = SigningKey("5c0e6f1a-9d9b-4c58-8a7e-1f6f2a3b4c5d", bytes(range(32)))
PUBLIC = str(KEY.verifier)
OFFSET = 37


def example() -> Any:
    spec = importlib.util.spec_from_file_location("verify_proof_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


INDEPENDENT = example()


def ours(document: bytes, key: str) -> None:
    decoded, verifier = proof.decode(document), type(KEY.verifier).parse(key)
    if isinstance(decoded, proof.RecordProof):
        proof.check_record(decoded, verifier)
    else:
        proof.check(decoded, verifier, frame_offsets)


def theirs(document: bytes, key: str) -> None:
    INDEPENDENT.verify(document, key)


both = pytest.mark.parametrize("verify", [ours, theirs])
Verify = Callable[[bytes, str], None]


def proven(*, leaf: int = 4, size: int = 11, records: int = 1) -> proof.Proof:
    data = frame(OFFSET, [b"value"] * records).data
    leaves = [merkle.leaf_hash(b"%d" % number) for number in range(size)]
    leaves[leaf] = merkle.leaf_hash(data)
    nodes = merkle.empty_frontier().add(leaves)

    def hash_at(level: int, index: int) -> bytes:
        return nodes[merkle.node_number(level, index)] if level else leaves[index]

    said = Checkpoint(
        origin_of(KEY.name, "orders", 0), size, merkle.root(hash_at, size), b"h" * 32, 0, OFFSET + 50
    )
    return proof.Proof(
        format=proof.FORMAT,
        offset=OFFSET,
        first_offset=OFFSET,
        next_offset=OFFSET + records,
        leaf=leaf,
        path=merkle.inclusion_path(hash_at, leaf, size),
        checkpoint=said.signed(KEY),
        key=PUBLIC,
        frame=data,
    )


def flipped_texts(text: str) -> Iterator[str]:
    data = text.encode()
    for bit in range(8 * len(data)):
        wrong = bytearray(data)
        wrong[bit // 8] ^= 1 << bit % 8
        try:
            yield wrong.decode()
        except UnicodeDecodeError:
            continue


def flipped_bytes(text: str) -> Iterator[str]:
    data = base64.b64decode(text)
    for bit in range(8 * len(data)):
        wrong = bytearray(data)
        wrong[bit // 8] ^= 1 << bit % 8
        yield base64.b64encode(wrong).decode()


def flipped(fields: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the document with each bit of each decoded field the other way round."""
    for name in ("format", "checkpoint", "key"):
        yield from ({**fields, name: wrong} for wrong in flipped_texts(fields[name]))
    for name in ("offset", "first_offset", "next_offset", "leaf"):
        yield from ({**fields, name: fields[name] ^ (1 << bit)} for bit in range(64))
        yield {**fields, name: -1 - fields[name]}
    yield from ({**fields, "frame": wrong} for wrong in flipped_bytes(fields["frame"]))
    path = fields["path"]
    for at, text in enumerate(path):
        yield from ({**fields, "path": [*path[:at], wrong, *path[at + 1 :]]} for wrong in flipped_bytes(text))
        yield {**fields, "path": path[:at] + path[at + 1 :]}
    yield {**fields, "path": [*path, path[0]]}
    for name in fields:
        yield {other: value for other, value in fields.items() if other != name}
    yield {**fields, "more": 1}


REFUSALS = (
    EvidenceRefused,
    INDEPENDENT.Refused,
    INDEPENDENT.InvalidSignature,
    ValueError,
    TypeError,
    KeyError,
)


@both
def test_a_proof_holds_and_every_flipped_bit_of_it_is_refused(verify: Verify) -> None:
    document = proven().document()
    verify(document, PUBLIC)
    refused = 0
    for wrong in flipped(json.loads(document)):
        with pytest.raises(REFUSALS):
            verify(json.dumps(wrong).encode(), PUBLIC)
        refused += 1
    print(f"{refused} proofs off by a bit or a field refused")
    assert refused > 4_500


@both
def test_a_proof_by_another_key_is_refused(verify: Verify) -> None:
    document = proven().document()
    other = str(SigningKey(KEY.name, bytes(32)).verifier)
    renamed = str(SigningKey("somebody", KEY.seed).verifier)
    for key in (other, renamed):
        with pytest.raises(REFUSALS):
            verify(document, key)
        # Whoever forges a proof names the key that the verifier has, and it is of no use.
        forged = {**json.loads(document), "key": key}
        with pytest.raises(REFUSALS):
            verify(json.dumps(forged).encode(), key)


@both
def test_any_offset_of_the_frame_is_proven_and_none_beside_it(verify: Verify) -> None:
    fields = json.loads(proven(records=5).document())
    for offset in range(OFFSET - 2, OFFSET + 8):
        document = json.dumps({**fields, "offset": offset}).encode()
        if OFFSET <= offset < OFFSET + 5:
            verify(document, PUBLIC)
        else:
            with pytest.raises(REFUSALS):
                verify(document, PUBLIC)


@both
@pytest.mark.parametrize(
    "document", [b"", b"{}", b"[]", b"null", b"\xff", b'{"format":"cordwood-proof/1"}', b"{" * 100_000]
)
def test_what_is_no_proof_is_refused(verify: Verify, document: bytes) -> None:
    with pytest.raises((*REFUSALS, RecursionError)):
        verify(document, PUBLIC)


def test_a_statement_is_no_frame_that_could_be_proven() -> None:
    """A leaf of a gap or a truncation is in the tree as well, and proves no record."""
    with pytest.raises(EvidenceRefused, match="not one whole record batch"):
        frame_offsets(b"\xff" + b'{"kind":"gap"}' * 10, Checkpoint("o/t/0", 1, b"r" * 32, b"h" * 32, 0, 1))


def test_one_frame_of_a_hundred_million_is_proven_by_two_kilobytes_beside_it() -> None:
    size, index = 100_000_000, 777_777
    hash_at, reads = hundred_million(1_000, size)
    said = Checkpoint(
        origin_of(KEY.name, "orders-of-the-year", 11), size, merkle.root(hash_at, size), b"h" * 32, 7, 10**12
    )
    reads[0] = 0
    found = proof.Proof(
        format=proof.FORMAT,
        offset=10**11,
        first_offset=10**11,
        next_offset=10**11 + 1000,
        leaf=index,
        path=merkle.inclusion_path(hash_at, index, size),
        checkpoint=said.signed(KEY),
        key=PUBLIC,
        frame=b"",
    )
    document = found.document()
    print(f"{len(document)} bytes beside the frame, {reads[0]} reads, {len(found.path)} hashes")
    assert len(document) < 2_000
    assert merkle.verify_inclusion(hash_at(0, index), index, size, found.path, said.root)


def test_the_example_refuses_a_checkpoint_that_is_no_text() -> None:
    names = INDEPENDENT.FIELDS | INDEPENDENT.MORE_FIELDS["cordwood-proof/1"]
    document = json.dumps({**dict.fromkeys(names, 5), "format": "cordwood-proof/1", "key": "k"})
    with pytest.raises(INDEPENDENT.Refused, match="no text"):
        INDEPENDENT.verify(document.encode(), "k")


def test_the_example_imports_nothing_of_cordwood_and_has_less_than_200_lines() -> None:
    lines = EXAMPLE.read_text().splitlines()
    imports = [line for line in lines if line.startswith(("import ", "from "))]
    assert {line.split()[1].split(".")[0] for line in imports} <= {
        *("__future__", "base64", "hashlib", "json", "os", "struct", "sys", "typing", "cryptography"),
    }
    assert len([line for line in lines if line.strip()]) < 200
