"""What a SASL exchange asks for next: the values that a mechanism returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol


class Refused(NamedTuple):
    """Authentication failed. *reason* is for the log; it never says whether the user exists.

    ``name`` is the user that the client claimed to be, if it came so far.
    """

    reason: str
    name: str | None = None


class Challenge(NamedTuple):
    """Send *token* and wait for the client's next message.

    With *refused* authentication has failed already, and the client only has to acknowledge that.
    """

    token: bytes
    refused: Refused | None = None


class Completed(NamedTuple):
    """The client is the user *name*. Send *token*.

    ``expires_ms`` is the wall-clock time at which the client's credential ends, None if it does not.
    """

    name: str
    token: bytes = b""
    expires_ms: int | None = None


class Computation(NamedTuple):
    """Call *compute*, which takes milliseconds, on any thread. Its result is the step to take.

    With *waits* it takes seconds if another machine does, and calls may share what one of them waited for.
    """

    compute: Callable[[], Challenge | Completed | Refused]
    waits: bool = False


Step = Challenge | Completed | Refused | Computation


class SaslMechanism(Protocol):
    """The server's side of one authentication."""

    def respond(self, token: bytes) -> Step:
        """Return the step that follows the client's message *token*. Not called after the last step."""
