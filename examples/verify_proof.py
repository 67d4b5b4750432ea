"""Check a proof of `cordwood prove` without Cordwood: the standard library and `cryptography`, nothing else.

    python verify_proof.py proof.json KEY

KEY is the verifier key, or a file that has it, from whoever you trust; the one in the proof is a hint only.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import struct
import sys
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

FIELDS = {"format", "offset", "leaf", "path", "checkpoint", "key"}
#: The other fields of a proof, by its form: of a whole frame, or of one record.
MORE_FIELDS = {
    "cordwood-proof/1": {"first_offset", "next_offset", "frame"},
    "cordwood-proof/2": {
        *("timestamp", "record_key", "value", "headers", "salt", "number", "list_path", "fields"),
    },
}
#: The numbers that leaves give to the formats of records.
FORMATS = {"batch": 0, "laminarmq": 3, "frame": 4}


class Refused(Exception):
    """The proof does not hold."""


def require(holds: bool, otherwise: str) -> None:
    """Refuse the proof unless something holds."""
    if not holds:
        raise Refused(otherwise)


def signed_text(note: str, key: str) -> str:
    """Return the text of a signed note (c2sp.org/signed-note) if *key* signed it."""
    name, _, rest = key.partition("+")
    key_id, _, encoded = rest.partition("+")
    public = base64.b64decode(encoded, validate=True)
    require(len(public) == 33 and public[0] == 1, "the key is no Ed25519 key")
    wanted = hashlib.sha256(name.encode() + b"\n" + public).digest()[:4]
    require(wanted.hex() == key_id, "the key does not have the id that it says")
    text, blank, signatures = note.rpartition("\n\n")
    require(bool(blank) and signatures.endswith("\n"), "the checkpoint is no signed note")
    verified = False
    for line in signatures[:-1].split("\n"):
        dash, signer, blob = line.split(" ")
        signature = base64.b64decode(blob, validate=True)
        canonical = base64.b64encode(signature).decode() == blob
        require(dash == "\N{EM DASH}" and canonical, "not a signature line")
        if signer == name and signature[:4] == wanted:
            Ed25519PublicKey.from_public_bytes(public[1:]).verify(signature[4:], f"{text}\n".encode())
            verified = True
    require(verified, "the checkpoint is not signed with the key")
    return text


def root_of(leaf: bytes, index: int, size: int, path: list[bytes]) -> bytes:
    """Return the root that *path* leads to from a leaf (RFC 9162, section 2.1.3.2)."""
    require(0 <= index < size, "there is no such leaf")
    last, over = size - 1, leaf
    for other in path:
        require(last > 0 and len(other) == 32, "the path is too long, or has what is no hash")
        if index & 1 or index == last:
            over = hashlib.sha256(b"\1" + other + over).digest()
            while index and not index & 1:
                index, last = index >> 1, last >> 1
        else:
            over = hashlib.sha256(b"\1" + over + other).digest()
        index, last = index >> 1, last >> 1
    require(last == 0, "the path is too short")
    return over


def decoded(text: str) -> bytes:
    """Return the bytes of *text*, which must be base64."""
    return base64.b64decode(text, validate=True)


def sized(data: bytes | None) -> bytes:
    """Return *data* after its length, -1 for none."""
    return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data


def record_leaf(proof: dict[str, Any], form: str) -> bytes:
    """Return the leaf that commits to the record in *proof*, one of the list of its frame."""
    key, value = (None if proof[name] is None else decoded(proof[name]) for name in ("record_key", "value"))
    headers = [(name.encode(), None if data is None else decoded(data)) for name, data in proof["headers"]]
    rest = b"\2" + struct.pack(">q", proof["timestamp"]) + sized(value) + struct.pack(">i", len(headers))
    rest += b"".join(sized(name) + sized(data) for name, data in headers)
    salt, fields = decoded(proof["salt"]), decoded(proof["fields"])
    require(len(salt) == 32 and len(fields) == 69, "the salt or the fields of the frame have a wrong size")
    flags = (key is None) + 2 * (value is None)
    hashes = (hashlib.sha256(data).digest() for data in (b"\1" + salt + (key or b""), rest))
    item = bytes([flags]) + b"".join(hashes)
    entry = hashlib.sha256(b"\0" + struct.pack(">q", proof["offset"]) + item).digest()
    # The format, the first offset of the frame and what to add for the last; the number of its records.
    number, first, delta = struct.unpack_from(">Bqi", fields)
    (count,) = struct.unpack_from(">i", fields, 33)
    require(number == FORMATS.get(form), "the frame is of another format")
    require(first <= proof["offset"] <= first + delta, "the frame does not hold the offset")
    root = root_of(entry, proof["number"], count, [decoded(each) for each in proof["list_path"]])
    return hashlib.sha256(b"\0\xfeCWR1" + fields + root).digest()


def ending(attributes: int, said: str | None) -> str:
    """Return that a frame is of a transaction, and how this ended as far as the proof says it."""
    require(said is None or bool(attributes & 0x10), "the proof speaks of a transaction, but there is none")
    if said is not None:
        return f", of an {said} transaction,"
    return ", of a transaction whose end the proof does not have," if attributes & 0x10 else ""


def opened(frame: bytes) -> tuple[str, bytes]:
    """Return whose a frame of the shared log is, and the record batch in its envelope of 80 bytes."""
    magic, size, version, kind = struct.unpack_from("<4sIBB", frame, 4)
    require(
        (magic, size, version, kind) == (b"WENV", len(frame), 1, 0), "the frame is no envelope of records"
    )
    partition, org, topic_hash = struct.unpack_from("<I8xQ16s", frame, 20)
    return f" of partition {partition} of the topic with hash {topic_hash.hex()} of org {org}", frame[80:]


def verify(document: bytes, key: str) -> str:
    """Return what *document* proves, as a sentence.

    Raises:
        Refused: If it proves nothing.
    """
    proof = json.loads(document)
    require(isinstance(proof, dict), "not a proof")
    require(proof.get("format") in MORE_FIELDS, "a proof of another form")
    said = proof.get("transaction")
    require("transaction" not in proof or said in ("aborted", "open"), "not a proof")
    require(set(proof) - {"transaction"} == FIELDS | MORE_FIELDS[proof["format"]], "not a proof")
    require(proof["key"] == key, "the proof names another key")
    require(isinstance(proof["checkpoint"], str), "the checkpoint is no text")
    lines = signed_text(proof["checkpoint"], key).split("\n")
    origin, size, root = lines[0], int(lines[1]), decoded(lines[2])
    formats = [line.partition(" ")[2] for line in lines[6:] if line.startswith("record-format ")]
    if "frame" not in proof:
        leaves = [record_leaf(proof, formats[0] if formats else "batch")]
    else:
        frame = decoded(proof["frame"])
        leaves = [hashlib.sha256(b"\0" + frame).digest()]
        if formats == ["shared"]:
            # The envelope of a frame, and the hash of the batch in it.
            parts = b"\0\xfeCWE1" + frame[:80] + hashlib.sha256(frame[80:]).digest()
            leaves.append(hashlib.sha256(parts).digest())
    path = [decoded(each) for each in proof["path"]]
    roots = [root_of(leaf, proof["leaf"], size, path) for leaf in leaves]
    require(root in roots, "the path does not lead to the signed root")
    if "frame" not in proof:
        whose = ending(struct.unpack_from(">h", decoded(proof["fields"]), 17)[0], said)
        return (
            f"{origin}: proven: offset {proof['offset']}{whose} is in leaf {proof['leaf']} of {size:,}: "
            f"timestamp {proof['timestamp']}, key {proof['record_key']}, value {proof['value']} (in base64)"
        )
    whose = ""
    if formats == ["shared"]:
        whose, frame = opened(frame)
    elif formats:
        ending(0, said)
        # Its own documentation says how to read such a frame; that it is in the log is proven.
        return (
            f"{origin}: proven: leaf {proof['leaf']} of {size:,} is this frame of {len(frame):,} bytes, "
            f"a record of the format {formats[0]}"
        )
    # A frame is a record batch of Kafka: its first offset, its length, and what to add for the last offset.
    first, length = struct.unpack_from(">qi", frame, 0)
    end = first + struct.unpack_from(">i", frame, 23)[0] + 1
    require(len(frame) == 12 + length, "the frame is not one whole record batch")
    require((proof["first_offset"], proof["next_offset"]) == (first, end), "the frame has other offsets")
    require(first <= proof["offset"] < end, "the frame does not hold the offset")
    whose += ending(struct.unpack_from(">h", frame, 21)[0], said)
    timestamps = struct.unpack_from(">qq", frame, 27)
    return (
        f"{origin}: proven: offset {proof['offset']}{whose} is in leaf {proof['leaf']} of {size:,}: "
        f"offsets {first} up to {end}, timestamps {timestamps[0]} to {timestamps[1]}, {len(frame):,} bytes"
    )


def main() -> int:
    """Check the proof that the command line names."""
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    key = sys.argv[2]
    if os.path.isfile(key):
        with open(key, encoding="utf-8") as file:
            key = file.read().strip()
    try:
        with open(sys.argv[1], "rb") as document:
            print(verify(document.read(), key))
    except (Refused, InvalidSignature, ValueError, TypeError, KeyError, struct.error) as error:
        print(f"not proven: {error or type(error).__name__}", file=sys.stderr)
        return 4
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
