"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677), the server's side, as Kafka speaks it.

Kafka prepares neither names nor passwords (SASLprep): both are their UTF-8 bytes. Channel binding is not
offered, and delegation tokens are refused.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from cordwood.security.steps import Challenge, Completed, Refused, Step

ITERATIONS_MIN = 4096
#: More would let one credential keep the server busy, and Kafka refuses it too.
ITERATIONS_MAX = 16384
#: The longest message of a client, and the longest name and nonce in it.
_MESSAGE_BYTES_MAX = 4096
_PART_BYTES_MAX = 1024
_FIRST = re.compile(
    rb"(?P<header>(?P<binding>[ny]|p=[A-Za-z0-9.-]+),(?:a=(?P<authzid>[^,\0]+))?,)"
    rb"(?P<bare>(?P<mandatory>m=[^,\0]*,)?n=(?P<name>[^,\0]+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)"
    rb"(?P<extensions>(?:,[A-Za-z]+=[^,\0]+)*))"
)
_FINAL = re.compile(
    rb"(?P<without_proof>c=(?P<binding>[A-Za-z0-9+/=]+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)"
    rb"(?:,[A-Za-z]+=[^,\0]+)*),p=(?P<proof>[A-Za-z0-9+/=]+)"
)
#: The two escapes of a name.
_ESCAPES = {b"=2C": b",", b"=3D": b"="}


class ScramMechanism(Enum):
    """A hash that SCRAM is used with. The value is Kafka's number."""

    SHA_256 = 1
    SHA_512 = 2

    @property
    def title(self) -> str:
        """The name in the SASL handshake."""
        return f"SCRAM-SHA-{self.hash_name[3:]}"

    @property
    def hash_name(self) -> str:
        """The name of the hash for `hashlib`."""
        return "sha256" if self is ScramMechanism.SHA_256 else "sha512"

    @property
    def size(self) -> int:
        """The bytes of a key."""
        return 32 if self is ScramMechanism.SHA_256 else 64

    @classmethod
    def titled(cls, title: str) -> ScramMechanism:
        """Return the mechanism with this name. Raises ValueError if there is none."""
        for each in cls:
            if each.title == title:
                return each
        raise ValueError(f"not a SCRAM mechanism: {title!r}")


class ScramCredential(NamedTuple):
    """The salted keys of a password: enough to check it, not to log in with SCRAM."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes

    def fields(self) -> tuple[int, str, str, str]:
        """Return iterations, salt, stored key and server key, bytes in base64, as they are stored."""
        salt, stored_key, server_key = (
            base64.b64encode(part).decode() for part in (self.salt, self.stored_key, self.server_key)
        )
        return self.iterations, salt, stored_key, server_key

    @classmethod
    def of_fields(cls, iterations: int, salt: str, stored_key: str, server_key: str) -> ScramCredential:
        """Return the credential that has these `fields`."""
        return cls(
            base64.b64decode(salt), iterations, base64.b64decode(stored_key), base64.b64decode(server_key)
        )

    def __repr__(self) -> str:
        """Return a text without the keys."""
        return f"ScramCredential(iterations={self.iterations})"


def credential_of_salted(
    mechanism: ScramMechanism, salt: bytes, iterations: int, salted_password: bytes
) -> ScramCredential:
    """Return the keys for a password that a client has salted."""
    client_key = hmac.digest(salted_password, b"Client Key", mechanism.hash_name)
    stored_key = hashlib.new(mechanism.hash_name, client_key).digest()
    server_key = hmac.digest(salted_password, b"Server Key", mechanism.hash_name)
    return ScramCredential(salt, iterations, stored_key, server_key)


def salted(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """Return the salted password. Takes about a millisecond for each 2,000 iterations."""
    return hashlib.pbkdf2_hmac(mechanism.hash_name, password.encode(), salt, iterations)


def derive(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> ScramCredential:
    """Return the keys for *password*. Takes about a millisecond for each 2,000 iterations."""
    return credential_of_salted(mechanism, salt, iterations, salted(mechanism, password, salt, iterations))


def is_password(mechanism: ScramMechanism, credential: ScramCredential, password: str) -> bool:
    """Return whether *credential* was derived from *password*. The time does not depend on it."""
    found = derive(mechanism, password, credential.salt, credential.iterations)
    return hmac.compare_digest(found.stored_key, credential.stored_key)


FindCredential = Callable[[ScramMechanism, str], ScramCredential]
"""Returns the credential of a user, or a decoy if there is none."""


class ScramExchange:
    """One SCRAM authentication: the client's first message, then its last one.

    The credential of an unknown user must be a decoy (see `Decoys`), so that its challenge looks like that of
    a user who exists.
    """

    def __init__(self, mechanism: ScramMechanism, find: FindCredential, nonce: str) -> None:
        """Start an exchange. *nonce* is the server's part: printable, without commas, never used before."""
        self._mechanism = mechanism
        self._find = find
        self._nonce = nonce
        self._name = ""
        self._credential: ScramCredential | None = None
        self._binding = b""
        self._messages = b""
        self._client_nonce = b""
        self._full_nonce = b""

    def respond(self, token: bytes) -> Step:
        """Return the answer to the next message of the client."""
        if len(token) > _MESSAGE_BYTES_MAX:
            return Refused("a SCRAM message is too long")
        return self._first(token) if self._credential is None else self._final(token, self._credential)

    def _first(self, token: bytes) -> Step:
        match = _FIRST.fullmatch(token)
        if match is None or max(len(match["name"]), len(match["nonce"])) > _PART_BYTES_MAX:
            return Refused("the first SCRAM message is malformed")
        if match["binding"].startswith(b"p") or match["mandatory"] is not None:
            return Refused("the client requires a SCRAM extension that is not offered")
        if b",tokenauth=" in match["extensions"]:
            return Refused("delegation tokens are not offered")
        try:
            self._name = unescaped(match["name"])
            authzid = self._name if match["authzid"] is None else unescaped(match["authzid"])
        except ValueError:
            return Refused("the name in the first SCRAM message is malformed")
        if authzid != self._name:
            return Refused("the authorization id is not the name of the user", self._name)
        self._credential = self._find(self._mechanism, self._name)
        self._binding = base64.b64encode(match["header"])
        self._client_nonce = match["nonce"]
        self._full_nonce = match["nonce"] + self._nonce.encode()
        challenge = b"r=%s,s=%s,i=%d" % (
            self._full_nonce,
            base64.b64encode(self._credential.salt),
            self._credential.iterations,
        )
        self._messages = match["bare"] + b"," + challenge
        return Challenge(challenge)

    def _final(self, token: bytes, credential: ScramCredential) -> Step:
        match = _FINAL.fullmatch(token)
        if match is None:
            return Refused("the last SCRAM message is malformed", self._name)
        proof = _decoded(match["proof"])
        if proof is None or len(proof) != self._mechanism.size:
            return Refused("the proof in the last SCRAM message is malformed", self._name)
        if match["nonce"] == self._client_nonce + self._full_nonce:
            # Kafka 3 accepts this for the sake of those clients; Kafka 4 refuses it, as RFC 5802 requires.
            return Refused("the client repeats its nonce, as librdkafka before 2.6.1 does", self._name)
        same = hmac.compare_digest(match["nonce"], self._full_nonce)
        if not same or not hmac.compare_digest(match["binding"], self._binding):
            return Refused("the last SCRAM message does not continue the first one", self._name)
        signed = self._messages + b"," + match["without_proof"]
        signature = hmac.digest(credential.stored_key, signed, self._mechanism.hash_name)
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        found = hashlib.new(self._mechanism.hash_name, client_key).digest()
        if not hmac.compare_digest(found, credential.stored_key):
            return Refused("the credentials are wrong", self._name)
        server = hmac.digest(credential.server_key, signed, self._mechanism.hash_name)
        return Completed(self._name, b"v=" + base64.b64encode(server))


def unescaped(name: bytes) -> str:
    """Return the name of a user as it is in a SCRAM message, without escapes.

    Raises:
        ValueError: If it has another escape than those of a comma and an equals sign, or is not UTF-8.
    """
    if re.search(rb"=(?!2C|3D)", name):
        raise ValueError("an escape in the name is neither =2C nor =3D")
    return re.sub(rb"=2C|=3D", lambda found: _ESCAPES[found[0]], name).decode()


def _decoded(text: bytes) -> bytes | None:
    """Return the bytes of *text*, or None if it is not base64 in its only correct form."""
    try:
        found = base64.b64decode(text, validate=True)
    except binascii.Error:
        return None
    return found if base64.b64encode(found) == text else None
