"""PLAIN: one message, checked against the SCRAM keys of the user."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.security import (
    Challenge,
    Completed,
    Computation,
    PlainExchange,
    Refused,
    ScramMechanism,
    ScramUsers,
    derive,
)

USERS = ScramUsers(b"secret of the directory")
USERS.set("alice", ScramMechanism.SHA_512, derive(ScramMechanism.SHA_512, "sécret", b"salt", 4096))
USERS.set("both", ScramMechanism.SHA_256, derive(ScramMechanism.SHA_256, "one", b"salt", 4096))
USERS.set("both", ScramMechanism.SHA_512, derive(ScramMechanism.SHA_512, "two", b"salt", 4096))


def ask(token: bytes) -> Challenge | Completed | Refused:
    step = PlainExchange(USERS.find).respond(token)
    return step.compute() if isinstance(step, Computation) else step


@pytest.mark.parametrize("message", ["\0alice\0sécret", "alice\0alice\0sécret", "\0both\0one", "\0both\0two"])
def test_the_password_of_any_of_the_users_credentials_gets_in(message: str) -> None:
    assert ask(message.encode()) == Completed(message.split("\0")[1])


@pytest.mark.parametrize("message", ["\0alice\0secret", "\0bob\0sécret", "\0both\0three", "\0alice\0 "])
def test_a_wrong_password_and_an_unknown_user_are_refused_alike(message: str) -> None:
    assert ask(message.encode()) == Refused("the credentials are wrong", message.split("\0")[1])


def test_an_unknown_user_costs_as_many_checks_as_a_known_one() -> None:
    """No work is saved for a name that does not exist, so time does not tell."""
    asked: list[tuple[ScramMechanism, str]] = []

    def find(mechanism: ScramMechanism, name: str) -> object:
        asked.append((mechanism, name))
        return USERS.find(mechanism, name)

    for name in ("alice", "bob"):
        step = PlainExchange(find).respond(f"\0{name}\0x".encode())  # type: ignore[arg-type]
        assert isinstance(step, Computation)
    assert [name for _, name in asked] == ["alice", "alice", "bob", "bob"]


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"alice",
        b"\0alice",
        b"\0alice\0",
        b"\0\0secret",
        b"\0alice\0secret\0",
        b"bob\0alice\0s\xc3\xa9cret",
        b"\0alice\0\xff",
        b"\0alice\0" + b"a" * 5000,
    ],
)
def test_a_malformed_message_is_refused_before_anything_is_computed(message: bytes) -> None:
    assert isinstance(PlainExchange(USERS.find).respond(message), Refused)


def test_no_changed_byte_gets_in() -> None:
    message = "\0alice\0sécret".encode()
    for changed in range(len(message)):
        mutated = bytearray(message)
        mutated[changed] ^= 1
        assert isinstance(ask(bytes(mutated)), Refused)


@given(st.binary(max_size=100))
def test_any_bytes_are_refused_or_checked(message: bytes) -> None:
    step = PlainExchange(USERS.find).respond(message)
    assert isinstance(step, Refused | Computation)
