"""The SASL exchange of a connection: its order, re-authentication, and how long a session lasts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cordwood.security import (
    Authenticated,
    Challenge,
    Completed,
    HandshakeAnswer,
    NotAuthenticated,
    OutOfOrder,
    Principal,
    Refused,
    Reply,
    SaslMechanism,
    SaslSession,
    Step,
)
from cordwood.security.sasl import REAUTHENTICATION_INTERVAL_NS, Outcome

SECOND = 1_000_000_000
ALICE = Principal("User", "alice")


class Scripted:
    """A mechanism that takes each message as the name of a step."""

    def respond(self, token: bytes) -> Step:
        word, _, rest = token.decode().partition(" ")
        match word:
            case "more":
                return Challenge(b"challenge")
            case "until":
                return Completed("alice", b"", int(rest))
            case "wrong":
                return Refused("the credentials are wrong", rest)
        return Completed(word, b"welcome")


def session(max_ms: int = 0) -> SaslSession:
    made: dict[str, Callable[[], SaslMechanism]] = {"PLAIN": Scripted, "SCRAM-SHA-256": Scripted}
    return SaslSession(made, max_ms)


def send(to: SaslSession, token: bytes, now_ms: int = 1000, now_ns: int = SECOND) -> Outcome:
    step = to.receive(token)
    if isinstance(step, OutOfOrder):
        return step
    assert isinstance(step, Challenge | Completed | Refused)
    return to.conclude(step, now_ms, now_ns)


def logged_in(max_ms: int = 0, token: bytes = b"alice") -> SaslSession:
    found = session(max_ms)
    assert found.handshake("SCRAM-SHA-256", 0) is HandshakeAnswer.ACCEPTED
    assert isinstance(send(found, token), Authenticated)
    return found


def test_versions_then_handshake_then_tokens_make_a_principal() -> None:
    found = session()
    assert found.ask_versions()
    assert found.handshake("SCRAM-SHA-256", 0) is HandshakeAnswer.ACCEPTED
    assert send(found, b"more") == Reply(b"challenge")
    before = found.is_authenticated
    assert send(found, b"alice") == Authenticated(b"welcome", ALICE, "SCRAM-SHA-256", 0, False)
    assert (before, found.is_authenticated) == (False, True)
    assert found.ends_ns is None


def test_versions_are_asked_once_and_first() -> None:
    found = session()
    assert [found.ask_versions(), found.ask_versions()] == [True, False]
    started = session()
    started.handshake("PLAIN", 0)
    assert not started.ask_versions()


def test_a_mechanism_that_is_not_enabled_ends_the_session() -> None:
    found = session()
    assert found.handshake("GSSAPI", 0) is HandshakeAnswer.UNSUPPORTED_MECHANISM
    assert found.handshake("PLAIN", 0) is HandshakeAnswer.OUT_OF_ORDER
    assert isinstance(send(found, b"alice"), OutOfOrder)


def test_a_token_before_the_handshake_and_after_the_end_is_out_of_order() -> None:
    assert isinstance(send(session(), b"alice"), OutOfOrder)
    found = logged_in()
    assert isinstance(send(found, b"alice"), OutOfOrder)
    assert not found.is_authenticated


def test_a_second_handshake_within_an_exchange_is_out_of_order() -> None:
    found = session()
    found.handshake("PLAIN", 0)
    assert found.handshake("PLAIN", 0) is HandshakeAnswer.OUT_OF_ORDER
    assert isinstance(send(found, b"alice"), OutOfOrder)


def test_after_a_refusal_nothing_gets_in() -> None:
    found = session()
    found.handshake("SCRAM-SHA-256", 0)
    outcome = send(found, b"wrong bob")
    assert outcome == NotAuthenticated(
        "Authentication failed during authentication due to invalid credentials "
        "with SASL mechanism SCRAM-SHA-256",
        "the credentials are wrong",
        "bob",
        "SCRAM-SHA-256",
        False,
    )
    assert isinstance(send(found, b"alice"), OutOfOrder)
    assert found.handshake("PLAIN", 0) is HandshakeAnswer.OUT_OF_ORDER


def test_the_answer_to_a_wrong_password_is_kafkas_and_has_no_name() -> None:
    found = session()
    found.handshake("PLAIN", 0)
    outcome = send(found, b"wrong bob")
    assert isinstance(outcome, NotAuthenticated)
    assert outcome.message == "Authentication failed: Invalid username or password"


@pytest.mark.parametrize(
    ("max_ms", "token", "lifetime_ms"),
    [
        (0, b"alice", 0),
        (5000, b"alice", 5000),
        (0, b"until 4000", 3000),
        (5000, b"until 4000", 3000),
        (2000, b"until 4000", 2000),
    ],
)
def test_a_session_lasts_until_its_credential_or_its_limit_ends(
    max_ms: int, token: bytes, lifetime_ms: int
) -> None:
    found = session(max_ms)
    found.handshake("PLAIN", 0)
    outcome = send(found, token, now_ms=1000, now_ns=7 * SECOND)
    assert isinstance(outcome, Authenticated)
    assert outcome.lifetime_ms == lifetime_ms
    assert found.ends_ns == (7 * SECOND + lifetime_ms * 1_000_000 if lifetime_ms else None)


def test_a_credential_that_is_over_makes_a_session_that_is_over() -> None:
    found = session()
    found.handshake("PLAIN", 0)
    assert isinstance(send(found, b"until 10", now_ms=1000, now_ns=SECOND), Authenticated)
    assert found.ends_ns == SECOND


def test_authenticating_again_makes_the_session_longer() -> None:
    found = logged_in(5000)
    assert found.handshake("SCRAM-SHA-256", 4 * SECOND) is HandshakeAnswer.ACCEPTED
    assert not found.is_authenticated
    outcome = send(found, b"alice", now_ns=4 * SECOND)
    assert outcome == Authenticated(b"welcome", ALICE, "SCRAM-SHA-256", 5000, True)
    assert found.ends_ns == 9 * SECOND


def test_authenticating_again_is_possible_once_a_second() -> None:
    found = logged_in()
    start = 5 * SECOND
    assert found.handshake("SCRAM-SHA-256", start) is HandshakeAnswer.ACCEPTED
    send(found, b"alice")
    soon = start + REAUTHENTICATION_INTERVAL_NS - 1
    assert found.handshake("SCRAM-SHA-256", soon) is HandshakeAnswer.TOO_SOON
    assert found.is_authenticated
    assert found.handshake("SCRAM-SHA-256", soon + 1) is HandshakeAnswer.ACCEPTED


def test_authenticating_again_as_somebody_else_ends_the_session() -> None:
    found = logged_in()
    found.handshake("SCRAM-SHA-256", SECOND)
    outcome = send(found, b"mallory")
    assert isinstance(outcome, NotAuthenticated)
    assert outcome.again
    assert "Cannot change principals" in outcome.message
    assert not found.is_authenticated


def test_authenticating_again_with_another_mechanism_ends_the_session() -> None:
    found = logged_in()
    assert found.handshake("PLAIN", SECOND) is HandshakeAnswer.ACCEPTED
    outcome = send(found, b"alice")
    assert isinstance(outcome, NotAuthenticated)
    assert "is not supported for re-authentication" in outcome.message
    assert not found.is_authenticated


def test_a_failed_attempt_to_authenticate_again_ends_the_session() -> None:
    found = logged_in()
    found.handshake("SCRAM-SHA-256", SECOND)
    outcome = send(found, b"wrong alice")
    assert isinstance(outcome, NotAuthenticated)
    assert "during re-authentication" in outcome.message
    assert not found.is_authenticated
