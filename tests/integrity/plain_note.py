"""A second reader of signed notes, written from c2sp.org/signed-note alone, over bytes."""

from __future__ import annotations

import base64
import hashlib
import re

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

NOTE = re.compile(rb"((?:[^\n]*\n)+)\n((?:\xe2\x80\x94 [^ \n]+ [A-Za-z0-9+/]+=*\n)+)")


def opened(note: bytes, name: bytes, public: bytes) -> bytes | None:
    """Return the text that the key signed, None if it did not."""
    found = NOTE.fullmatch(note)
    if found is None or re.search(rb"[\x00-\x09\x0b-\x1f]", note):
        return None
    text, wanted = found[1], hashlib.sha256(name + b"\n\x01" + public).digest()[:4]
    verified = False
    for line in found[2].splitlines():
        _, signer, encoded = line.split(b" ")
        blob = base64.b64decode(encoded)
        if base64.b64encode(blob) != encoded:
            return None
        if signer == name and blob[:4] == wanted:
            try:
                Ed25519PublicKey.from_public_bytes(public).verify(blob[4:], text)
            except InvalidSignature:
                return None
            verified = True
    return text if verified else None
