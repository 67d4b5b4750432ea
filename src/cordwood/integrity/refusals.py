"""What is raised when something signed or proven does not hold."""

from __future__ import annotations

from cordwood.errors import CordwoodError


class EvidenceRefused(CordwoodError):
    """A note, a checkpoint or a proof that does not show what it is to show; says what differs."""


class SigningUnavailable(CordwoodError):
    """What signs and verifies is not installed."""

    def __init__(self) -> None:
        super().__init__(
            "signatures need the package cryptography, which is not installed; "
            "install it with pip install 'cordwood[signed]'"
        )
