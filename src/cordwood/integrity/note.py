"""Signed notes in C2SP's format (c2sp.org/signed-note): text, a blank line, signatures; Ed25519 only.

Keys are texts, in the form that golang.org/x/mod/sumdb/note reads and writes: ``name+id+base64`` verifies,
and ``PRIVATE+KEY+name+id+base64`` signs. Only this module imports `cryptography`, when a signature is made or
checked.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING

from cordwood.errors import EvidenceRefused, SigningUnavailable

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

ED25519 = b"\1"
SEED_SIZE = 32
_PRIVATE = "PRIVATE+KEY+"
_SIGNATURE = "— "
_KEY_ID_SIZE, _SIGNATURE_SIZE = 4, 64
#: The format has no limit; a larger note could only waste time.
_NOTE_BYTES_MAX, _SIGNATURES_MAX = 1 << 20, 100


@dataclass(frozen=True, slots=True)
class VerifierKey:
    """The public key that others pin: it can check signatures, but not sign."""

    name: str
    public: bytes

    @property
    def key_id(self) -> bytes:
        """The four bytes that identify this key in a signature."""
        return sha256(self.name.encode() + b"\n" + ED25519 + self.public).digest()[:_KEY_ID_SIZE]

    def __str__(self) -> str:
        """Return the text that `parse` takes."""
        return f"{self.name}+{self.key_id.hex()}+{_text(ED25519 + self.public)}"

    @classmethod
    def parse(cls, text: str) -> VerifierKey:
        """Return the key in *text*.

        Raises:
            EvidenceRefused: If it is not a key.
        """
        name, key_id, encoded = _parts(text, "a verifier key is NAME+ID+BASE64, as checkpoint show prints it")
        key = cls(name, encoded)
        if key.key_id.hex() != key_id:
            raise EvidenceRefused(f"the verifier key of {name} does not have the id {key_id} that it says")
        return key


@dataclass(frozen=True, slots=True)
class SigningKey:
    """The private key. Only `private_text` shows its secret."""

    name: str
    seed: bytes = field(repr=False)

    @property
    def verifier(self) -> VerifierKey:
        """The public key that others pin."""
        return VerifierKey(self.name, _private(self.seed).public_key().public_bytes_raw())

    def private_text(self) -> str:
        """Return the text that `parse` takes. The text is secret."""
        return f"{_PRIVATE}{self.name}+{self.verifier.key_id.hex()}+{_text(ED25519 + self.seed)}"

    @classmethod
    def parse(cls, text: str) -> SigningKey:
        """Return the key in *text*.

        Raises:
            EvidenceRefused: If it is not a key. The message does not contain the text.
        """
        expected = f"a signing key is {_PRIVATE}NAME+ID+BASE64"
        if not text.startswith(_PRIVATE):
            raise EvidenceRefused(expected)
        name, key_id, encoded = _parts(text.removeprefix(_PRIVATE), expected)
        key = cls(name, encoded)
        if key.verifier.key_id.hex() != key_id:
            raise EvidenceRefused(f"the signing key of {name} does not have the id {key_id} that it says")
        return key


def sign(text: str, key: SigningKey) -> str:
    """Return *text*, which must be whole lines, as a note signed with *key*.

    Raises:
        SigningUnavailable: If the signature library is not installed.
    """
    assert text.endswith("\n")
    assert _is_clean(text)
    signature = _private(key.seed).sign(text.encode())
    return f"{text}\n{_SIGNATURE}{key.name} {_text(key.verifier.key_id + signature)}\n"


def open_note(note: str, key: VerifierKey) -> str:
    """Return the text of *note*, which *key* must have signed. Other signatures are ignored.

    Raises:
        EvidenceRefused: If it is not a note, or *key* did not sign exactly this text.
        SigningUnavailable: If the signature library is not installed.
    """
    text, signatures = _parse_note(note)
    ours = [signature for name, key_id, signature in signatures if (name, key_id) == (key.name, key.key_id)]
    if not ours:
        names = ", ".join(f"{name}+{key_id.hex()}" for name, key_id, _ in signatures)
        raise EvidenceRefused(f"the note is not signed by {key.name}+{key.key_id.hex()}, but by {names}")
    if not all(_is_signature(key.public, signature, text.encode()) for signature in ours):
        raise EvidenceRefused(f"the signature of {key.name} is not one of this text")
    return text


def _parse_note(note: str) -> tuple[str, list[tuple[str, bytes, bytes]]]:
    """Return the text of a note and the (name, key id, signature) of each signature."""
    text, blank, rest = note.rpartition("\n\n")
    lines = rest.split("\n")
    if not blank or lines.pop() or not lines or not _is_clean(note) or len(note) > _NOTE_BYTES_MAX:
        raise EvidenceRefused("not a signed note: that is text, an empty line, and lines with signatures")
    if len(lines) > _SIGNATURES_MAX:
        raise EvidenceRefused(f"the note has {len(lines)} signatures, more than {_SIGNATURES_MAX}")
    return text + "\n", [_signature(line) for line in lines]


def _signature(line: str) -> tuple[str, bytes, bytes]:
    name, _, encoded = line.removeprefix(_SIGNATURE).partition(" ")
    data = _decoded(encoded)
    if not line.startswith(_SIGNATURE) or not _is_name(name) or data is None or len(data) <= _KEY_ID_SIZE:
        raise EvidenceRefused(f"not a signature line of a note: {line[:100]!r}")
    return name, data[:_KEY_ID_SIZE], data[_KEY_ID_SIZE:]


def _parts(text: str, expected: str) -> tuple[str, str, bytes]:
    """Return the name, the id in hex and the 32 bytes of a key's text."""
    name, _, rest = text.partition("+")
    key_id, _, encoded = rest.partition("+")
    data = _decoded(encoded)
    if not _is_name(name) or data is None or data[:1] != ED25519 or len(data) != 1 + SEED_SIZE:
        raise EvidenceRefused(expected)
    return name, key_id, data[1:]


def _is_name(name: str) -> bool:
    return bool(name) and "+" not in name and not any(letter.isspace() for letter in name) and _is_clean(name)


def _is_clean(text: str) -> bool:
    """Return whether *text* has no control character but newlines."""
    return all(letter >= " " or letter == "\n" for letter in text)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decoded(text: str) -> bytes | None:
    """Return the bytes that *text* encodes in base64, None unless it is in canonical form."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return data if _text(data) == text else None


def _private(seed: bytes) -> Ed25519PrivateKey:
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError:
        raise SigningUnavailable from None
    return Ed25519PrivateKey.from_private_bytes(seed)


def _is_signature(public: bytes, signature: bytes, data: bytes) -> bool:
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ImportError:
        raise SigningUnavailable from None
    if len(signature) != _SIGNATURE_SIZE:
        return False
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True
