"""SCRAM: the vectors of RFC 7677, an independent client, and every byte of a message changed."""

from __future__ import annotations

import base64
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.scram import ScramClient

from cordwood.security import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    Challenge,
    Completed,
    Refused,
    ScramCredential,
    ScramExchange,
    ScramMechanism,
    ScramUsers,
    Step,
    credential_of_salted,
    derive,
    salt_from,
    salted,
)
from cordwood.security.scram import is_password, unescaped

NONCE = "servernonce-0123456789"
SALT = b"sixteen bytes..."


def users(name: str = "alice", password: str = "secret") -> ScramUsers:
    found = ScramUsers(b"secret of the directory")
    for mechanism in ScramMechanism:
        found.set(name, mechanism, derive(mechanism, password, SALT, ITERATIONS_MIN))
    return found


USERS = users()


def exchange(mechanism: ScramMechanism = ScramMechanism.SHA_256, known: ScramUsers = USERS) -> ScramExchange:
    return ScramExchange(mechanism, known.find, NONCE)


def challenge(step: Step) -> bytes:
    assert isinstance(step, Challenge), step
    return step.token


def refusal(step: Step) -> Refused:
    assert isinstance(step, Refused), step
    return step


def test_the_exchange_of_rfc_7677_has_its_bytes() -> None:
    mechanism = ScramMechanism.SHA_256
    credential = derive(mechanism, "pencil", base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="), 4096)
    server = ScramExchange(mechanism, lambda *_: credential, "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    first = challenge(server.respond(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"))
    assert first == f"r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
    last = server.respond(f"c=biws,r={nonce},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode())
    assert last == Completed("user", b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


@pytest.mark.parametrize("mechanism", ScramMechanism)
def test_a_client_written_from_the_rfc_logs_in_and_knows_its_server(mechanism: ScramMechanism) -> None:
    server = exchange(mechanism)
    client = ScramClient(mechanism.hash_name, "alice", "secret")
    done = server.respond(client.final(challenge(server.respond(client.first()))))
    assert isinstance(done, Completed)
    assert done.name == "alice"
    client.check(done.token)


@pytest.mark.parametrize("mechanism", ScramMechanism)
@pytest.mark.parametrize(("name", "password"), [("alice", "Secret"), ("alice", ""), ("bob", "secret")])
def test_a_wrong_password_and_an_unknown_user_are_refused_in_the_same_words(
    mechanism: ScramMechanism, name: str, password: str
) -> None:
    server = exchange(mechanism)
    client = ScramClient(mechanism.hash_name, name, password)
    last = server.respond(client.final(challenge(server.respond(client.first()))))
    assert refusal(last).reason == "the credentials are wrong"


def test_no_changed_byte_of_the_last_message_gets_in() -> None:
    """Each bit of each byte; only the message that the client made for this challenge is accepted."""
    client = ScramClient("sha256", "alice", "secret")
    final = client.final(challenge(exchange().respond(client.first())))
    for position in range(8 * len(final)):
        mutated = bytearray(final)
        mutated[position // 8] ^= 1 << position % 8
        server = exchange()
        challenge(server.respond(client.first()))
        refusal(server.respond(bytes(mutated)))
    server = exchange()
    challenge(server.respond(client.first()))
    assert isinstance(server.respond(final), Completed)


def test_no_changed_byte_of_the_first_message_gets_in() -> None:
    """What the server saw first is part of what the client signs."""
    client = ScramClient("sha256", "alice", "secret")
    first, checked = client.first(), 0
    final = client.final(challenge(exchange().respond(first)))
    for changed in range(len(first)):
        for bit in range(8):
            mutated = bytearray(first)
            mutated[changed] ^= 1 << bit
            server = exchange()
            if isinstance(server.respond(bytes(mutated)), Challenge):
                checked += 1
                refusal(server.respond(final))
    assert checked > 50


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_challenged(token: bytes) -> None:
    step = exchange().respond(token)
    assert isinstance(step, Refused | Challenge)
    server = exchange()
    challenge(server.respond(b"n,,n=alice,r=abc"))
    refusal(server.respond(token))


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"n,,",
        b"n,,n=,r=abc",
        b"n,,n=alice,r=",
        b"n,,n=alice,r=a,",
        b"n,,n=alice,r=a\x7f",
        b"n,,r=abc,n=alice",
        b"n,,n=al=ice,r=abc",
        b"n,,n=al=2cice,r=abc",
        b"n,,n=\xff,r=abc",
        b"n,,m=x,n=alice,r=abc",
        b"n,a=bob,n=alice,r=abc",
        b"p=tls-unique,,n=alice,r=abc",
        b"n,,n=alice,r=abc,tokenauth=true",
        b"n,,n=" + b"a" * 1025 + b",r=abc",
        b"n,,n=alice,r=" + b"a" * 1025,
        b"n,,n=alice,r=abc," + b"x=y," * 2000 + b"x=y",
        b"x,,n=alice,r=abc",
        b"n,,n=alice\0,r=abc",
        b"n,,n=alice,r=abc\n",
    ],
)
def test_a_malformed_first_message_is_refused(first: bytes) -> None:
    refusal(exchange().respond(first))


@pytest.mark.parametrize("first", [b"y,,n=alice,r=abc", b"n,a=alice,n=alice,r=abc", b"n,,n=alice,r=abc,x=y"])
def test_other_forms_of_the_first_message_are_accepted(first: bytes) -> None:
    challenge(exchange().respond(first))


def test_a_message_of_another_exchange_is_refused() -> None:
    """A replay: the server's nonce is in what the client signs."""
    client = ScramClient("sha256", "alice", "secret")
    server = exchange()
    final = client.final(challenge(server.respond(client.first())))
    assert isinstance(server.respond(final), Completed)
    other = ScramExchange(ScramMechanism.SHA_256, USERS.find, "another-server-nonce-1234567")
    challenge(other.respond(client.first()))
    assert "does not continue" in refusal(other.respond(final)).reason


def test_a_client_that_repeats_its_nonce_is_refused_for_a_reason_of_its_own() -> None:
    """librdkafka did so for years; the password is not what its user must look for."""
    server, client = exchange(), ScramClient("sha256", "alice", "secret")
    final = client.final(challenge(server.respond(client.first())), repeated=client.nonce)
    assert "librdkafka before 2.6.1" in refusal(server.respond(final)).reason


def test_names_with_commas_and_equals_signs_are_escaped() -> None:
    assert unescaped(b"a=2Cb=3Dc=3D2C") == "a,b=c=2C"
    known = users("CN=a,O=b", "ü, =")
    client = ScramClient("sha512", "CN=a,O=b", "ü, =")
    server = exchange(ScramMechanism.SHA_512, known)
    done = server.respond(client.final(challenge(server.respond(client.first()))))
    assert isinstance(done, Completed)
    assert done.name == "CN=a,O=b"


def test_keys_from_a_password_and_from_a_salted_one_are_the_same() -> None:
    for mechanism in ScramMechanism:
        found = derive(mechanism, "secret", SALT, 5000)
        assert found == credential_of_salted(mechanism, SALT, 5000, salted(mechanism, "secret", SALT, 5000))
        assert {len(found.stored_key), len(found.server_key)} == {mechanism.size}
        assert is_password(mechanism, found, "secret")
        assert not is_password(mechanism, found, "secret ")
        assert "secret" not in repr(found)
        assert found.stored_key.hex() not in repr(found)


def test_mechanisms_have_kafkas_names_and_numbers() -> None:
    assert {each.title: each.value for each in ScramMechanism} == {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
    assert ScramMechanism.titled("SCRAM-SHA-512") is ScramMechanism.SHA_512
    with pytest.raises(ValueError, match="not a SCRAM mechanism"):
        ScramMechanism.titled("SCRAM-SHA-1")
    assert (ITERATIONS_MIN, ITERATIONS_MAX) == (4096, 16384)


def shape(found: ScramCredential) -> tuple[int, int, bool]:
    return found.iterations, len(found.salt), found.salt.isalnum() and found.salt.islower()


def test_an_unknown_user_always_has_the_same_salt_and_another_directory_another_one() -> None:
    mechanism = ScramMechanism.SHA_256
    first, second = ScramUsers(b"one"), ScramUsers(b"two")
    assert first.find(mechanism, "bob") == ScramUsers(b"one").find(mechanism, "bob")
    assert first.find(mechanism, "bob") != second.find(mechanism, "bob")
    assert first.find(mechanism, "bob").salt != first.find(mechanism, "carol").salt
    assert first.find(mechanism, "bob").salt != first.find(ScramMechanism.SHA_512, "bob").salt


@pytest.mark.parametrize(
    "salt", [salt_from(hashlib.sha256(b"x").digest()), bytes(range(64)), b"sixteen bytes..."]
)
def test_a_decoy_has_the_form_of_most_credentials(salt: bytes) -> None:
    mechanism = ScramMechanism.SHA_512
    known = ScramUsers(b"secret")
    known.set("odd", mechanism, derive(mechanism, "x", b"odd salt", 4097))
    for name in ("alice", "bob"):
        known.set(name, mechanism, derive(mechanism, "x", salt, 8192))
    expected = (8192, len(salt))
    assert shape(known.find(mechanism, "nobody"))[:2] == expected
    assert (salt == salt_from(hashlib.sha256(b"x").digest())) == shape(known.find(mechanism, "nobody"))[2]
    for name in ("alice", "bob"):
        known.remove(name, mechanism)
    assert known.find(mechanism, "nobody").iterations == 4097
    known.remove("odd", mechanism)
    assert known.find(mechanism, "nobody").iterations == ITERATIONS_MIN


def test_users_are_set_replaced_and_removed_by_mechanism() -> None:
    known = users()
    assert list(known.names()) == ["alice"]
    new = derive(ScramMechanism.SHA_256, "other", SALT, 4096)
    known.set("alice", ScramMechanism.SHA_256, new)
    assert known.find(ScramMechanism.SHA_256, "alice") == new
    known.remove("alice", ScramMechanism.SHA_512)
    assert dict(known.credentials("alice")) == {ScramMechanism.SHA_256: new}
    known.remove("alice", ScramMechanism.SHA_512)
    known.remove("alice", ScramMechanism.SHA_256)
    assert list(known.names()) == []
    assert known.credentials("alice") == {}
    assert known.find(ScramMechanism.SHA_256, "alice") != new
