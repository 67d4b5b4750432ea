"""PLAIN (RFC 4616): a name and a password, checked against SCRAM keys."""

from __future__ import annotations

from functools import partial

from cordwood.security.scram import FindCredential, ScramMechanism, is_password
from cordwood.security.steps import Completed, Computation, Refused, Step

_MESSAGE_BYTES_MAX = 2048


class PlainExchange:
    """One PLAIN authentication: a single message."""

    def __init__(self, find: FindCredential) -> None:
        self._find = find

    def respond(self, token: bytes) -> Step:
        """Return the computation that checks the password in *token*."""
        if len(token) > _MESSAGE_BYTES_MAX:
            return Refused("a PLAIN message is too long")
        try:
            authzid, name, password = token.decode().split("\0")
        except ValueError:
            return Refused("a PLAIN message is malformed")
        if not name or not password:
            return Refused("a PLAIN message has no name or no password", name or None)
        if authzid not in ("", name):
            return Refused("the authorization id is not the name of the user", name)
        # For each mechanism, with decoys where the user has no credential: the time tells nothing.
        credentials = [(mechanism, self._find(mechanism, name)) for mechanism in ScramMechanism]
        checks = [partial(is_password, mechanism, found, password) for mechanism, found in credentials]

        def check() -> Completed | Refused:
            fits = [each() for each in checks]
            return Completed(name) if any(fits) else Refused("the credentials are wrong", name)

        return Computation(check)
