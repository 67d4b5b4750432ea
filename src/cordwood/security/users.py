"""SCRAM users: their salted keys, and decoys for users that do not exist."""

from __future__ import annotations

import hmac
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from cordwood.security.scram import ITERATIONS_MIN, ScramCredential, ScramMechanism

#: A salt is this many digits of base 36, which Kafka's own tools make of 130 random bits.
SALT_DIGITS = 26
_DIGITS = b"0123456789abcdefghijklmnopqrstuvwxyz"


def salt_from(random: bytes) -> bytes:
    """Return a salt in the form of Kafka's tools, made of at least 32 random bytes.

    Salts of one form do not tell how a user was created, nor whether it exists.
    """
    return _in_base_36(random, SALT_DIGITS)


def _in_base_36(random: bytes, digits: int) -> bytes:
    number = int.from_bytes(random, "big")
    found = bytearray()
    for _ in range(digits):
        number, digit = divmod(number, 36)
        found.append(_DIGITS[digit])
    return bytes(found)


class _Shape(NamedTuple):
    """What the first message of the server shows of a credential."""

    iterations: int = ITERATIONS_MIN
    salt_bytes: int = SALT_DIGITS
    is_text: bool = True


def _shape_of(credential: ScramCredential) -> _Shape:
    is_text = all(byte in _DIGITS for byte in credential.salt)
    return _Shape(credential.iterations, len(credential.salt), is_text)


class ScramUsers:
    """The credentials of all users. One writer; `find` may be called beside it from any thread.

    A user that does not exist has decoys: credentials that no password fits and that stay the same as long
    as *secret* does, with the salt's form and the iterations of most users.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._of: dict[str, dict[ScramMechanism, ScramCredential]] = {}
        self._shapes = {mechanism: Counter[_Shape]() for mechanism in ScramMechanism}

    def set(self, name: str, mechanism: ScramMechanism, credential: ScramCredential) -> None:
        """Set the credential of a user for one mechanism, replacing an earlier one in one step."""
        replaced = self._of.get(name, {}).get(mechanism)
        self._of[name] = {**self._of.get(name, {}), mechanism: credential}
        self._shapes[mechanism][_shape_of(credential)] += 1
        if replaced is not None:
            self._forget_shape(mechanism, replaced)

    def remove(self, name: str, mechanism: ScramMechanism) -> None:
        """Remove the credential of a user for one mechanism, if there is one."""
        kept = dict(self._of.get(name, {}))
        removed = kept.pop(mechanism, None)
        if removed is None:
            return
        if kept:
            self._of[name] = kept
        else:
            del self._of[name]
        self._forget_shape(mechanism, removed)

    def _forget_shape(self, mechanism: ScramMechanism, credential: ScramCredential) -> None:
        shapes, shape = self._shapes[mechanism], _shape_of(credential)
        shapes[shape] -= 1
        if not shapes[shape]:
            del shapes[shape]

    def find(self, mechanism: ScramMechanism, name: str) -> ScramCredential:
        """Return the credential of a user, or the decoy of one that does not exist."""
        found = self._of.get(name, {}).get(mechanism)
        # Computed in any case: the time must not tell which one it is.
        decoy = self._decoy(mechanism, name)
        return decoy if found is None else found

    def _decoy(self, mechanism: ScramMechanism, name: str) -> ScramCredential:
        shape = max(list(self._shapes[mechanism].items()), key=lambda each: each[1], default=(_Shape(), 0))[0]

        def bytes_for(purpose: str) -> bytes:
            asked = f"{purpose} {mechanism.title} {name}".encode()
            return hmac.digest(self._secret, asked, "sha512")

        salt = bytes_for("salt")
        while len(salt) < shape.salt_bytes:
            salt += hmac.digest(self._secret, salt, "sha512")
        salt = _in_base_36(salt, shape.salt_bytes) if shape.is_text else salt[: shape.salt_bytes]
        size = mechanism.size
        return ScramCredential(
            salt, shape.iterations, bytes_for("stored key")[:size], bytes_for("server key")[:size]
        )

    def credentials(self, name: str) -> Mapping[ScramMechanism, ScramCredential]:
        """Return the credentials of a user by mechanism; none if it does not exist."""
        return self._of.get(name, {})

    def names(self) -> Iterable[str]:
        """Return the names of all users, sorted."""
        return sorted(self._of)
