"""OAUTHBEARER: tokens with each claim wrong, signatures of other keys, and the client's message."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from joserfc import jwt
from joserfc.jwk import ECKey, OctKey, RSAKey

from cordwood.security import (
    Challenge,
    Completed,
    Computation,
    OAuthExchange,
    Refused,
    TokenRefused,
    TokenSubject,
    TokenTerms,
    UnknownKey,
    WebKeys,
    check_token,
)

NOW_S = 1_800_000_000
RSA = RSAKey.generate_key(2048, {"kid": "rsa"})
OTHER_RSA = RSAKey.generate_key(2048, {"kid": "rsa"})
EC = ECKey.generate_key("P-256", {"kid": "ec"})
EC_384 = ECKey.generate_key("P-384", {"kid": "ec-384"})
EC_521 = ECKey.generate_key("P-521", {"kid": "ec-521"})
CLAIMS = {"sub": "alice", "aud": "kafka", "iss": "https://issuer", "iat": NOW_S - 10, "exp": NOW_S + 600}
TERMS = TokenTerms(audiences=("kafka", "other"), issuer="https://issuer", clock_skew_s=30)


def key_set(*keys: dict[str, Any]) -> WebKeys:
    return WebKeys.parse(json.dumps({"keys": list(keys)}).encode())


def public(key: RSAKey | ECKey, **more: object) -> dict[str, Any]:
    return {**key.as_dict(private=False), **more}


KEYS = key_set(public(RSA), public(EC), public(EC_384), public(EC_521))


def token(
    claims: dict[str, Any] | None = None, alg: str = "RS256", key: Any = RSA, kid: str | None = "rsa"
) -> str:
    header = {"alg": alg} if kid is None else {"alg": alg, "kid": kid}
    return jwt.encode(header, CLAIMS if claims is None else claims, key, algorithms=[alg])


def check(text: str, terms: TokenTerms = TERMS, keys: WebKeys = KEYS) -> TokenSubject:
    return check_token(text, keys, terms, NOW_S * 1000)


def refused(text: str, terms: TokenTerms = TERMS, keys: WebKeys = KEYS) -> str:
    with pytest.raises(TokenRefused) as raised:
        check(text, terms, keys)
    signature = text.rpartition(".")[2]
    assert len(signature) < 20 or signature not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize(
    ("alg", "key", "kid"),
    [
        *((f"{family}{bits}", RSA, "rsa") for family in ("RS", "PS") for bits in (256, 384, 512)),
        ("ES256", EC, "ec"),
        ("ES384", EC_384, "ec-384"),
        ("ES512", EC_521, "ec-521"),
        ("RS256", RSA, None),
    ],
)
def test_a_token_of_a_known_key_has_a_subject_and_an_end(alg: str, key: Any, kid: str | None) -> None:
    assert check(token(None, alg, key, kid)) == TokenSubject("alice", (NOW_S + 600) * 1000)


# --- RFC 7515, appendix A -----------------------------------------------------------------------------

RFC_KEYS = {
    "RS256": {
        "kty": "RSA",
        "n": "ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt"
        "0Bm4d4QlL-yRT-SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSX"
        "ndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5"
        "IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ",
        "e": "AQAB",
    },
    "ES256": {
        "kty": "EC",
        "crv": "P-256",
        "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
        "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0",
    },
    "ES512": {
        "kty": "EC",
        "crv": "P-521",
        "x": "AekpBQ8ST8a8VcfVOTNl353vSrDCLLJXmPk06wTjxrrjcBpXp5EOnYG_NjFZ6OvLFV1jSfS9tsz4qUxcWceqwQGk",
        "y": "ADSmRA43Z1DSNx_RvcLI87cdL07l6jQyyBXMoxVg_l2Th-x3S1WDhjDly79ajL4Kkd0AZMaZmh9ubmf63e3kyMj2",
    },
}
RFC_CLAIMS = "eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ"
RFC_TOKENS = {
    "RS256": f"eyJhbGciOiJSUzI1NiJ9.{RFC_CLAIMS}."
    "cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W"
    "2Fp5jujGbds9uJdbF9CUAr7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkS"
    "jtQBMHlb1L07Qe7K0GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC-eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnv"
    "Wh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw",
    "ES256": f"eyJhbGciOiJFUzI1NiJ9.{RFC_CLAIMS}."
    "DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q",
    "ES512": "eyJhbGciOiJFUzUxMiJ9.UGF5bG9hZA."
    "AdwMgeerwtHoh-l192l60hp9wAHZFVJbLfD_UxMi70cwnZOYaRI1bKPWROc-mZZqwqT2SI-KGDKB34XO0aw_7Xdt"
    "AG8GaSwFKdCAPZgoXD2YBJZCPEX3xKpRwcdOO8KpEHwJjyqOgzDO7iKvU8vcnwNrmxYbSW9ERBXukOXolLzeO_Jn",
}
#: What these tokens lack as tokens of Kafka is said after their signature was found right.
RFC_LACKS = {
    "RS256": "the claim 'iat' is missing",
    "ES256": "the claim 'iat' is missing",
    "ES512": "the claims are not JSON",
}


@pytest.mark.parametrize("alg", RFC_TOKENS)
def test_the_signatures_of_rfc_7515_are_right_with_its_keys_and_wrong_otherwise(alg: str) -> None:
    """Appendix A.2, A.3 and A.4."""
    text, keys = RFC_TOKENS[alg], key_set(RFC_KEYS[alg])
    terms = TokenTerms(issuer=None, subject_claim="iss")
    assert refused(text, terms, keys) == RFC_LACKS[alg]
    signed, _, signature = text.rpartition(".")
    flipped = "B" if signature[10] == "A" else "A"
    assert (
        refused(f"{signed}.{signature[:10]}{flipped}{signature[11:]}", terms, keys)
        == "the signature is wrong"
    )
    header, _, payload = signed.partition(".")
    assert refused(f"{header}.{payload[:-2]}AA.{signature}", terms, keys) == "the signature is wrong"
    other = key_set(public(RSA if alg == "RS256" else EC if alg == "ES256" else EC_521))
    assert refused(text, terms, other) == "the signature is wrong"


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no-subject": ({"sub": None}, "'sub'"),
    "empty-subject": ({"sub": " "}, "'sub'"),
    "subject-not-text": ({"sub": 5}, "'sub'"),
    "another-audience": ({"aud": "else"}, "audience"),
    "no-audience": ({"aud": None}, "audience"),
    "audience-not-text": ({"aud": [5]}, "audience"),
    "another-issuer": ({"iss": "https://issuer/"}, "issuer"),
    "no-issuer": ({"iss": None}, "issuer"),
    "expired": ({"exp": NOW_S - 30}, "expired"),
    "expired-long-ago": ({"exp": 10, "iat": 5}, "expired"),
    "no-expiry": ({"exp": None}, "'exp'"),
    "expiry-not-a-number": ({"exp": str(NOW_S + 600)}, "'exp'"),
    "expiry-a-boolean": ({"exp": True}, "'exp'"),
    "expiry-too-large": ({"exp": 1e300}, "'exp'"),
    "expiry-negative": ({"exp": -1}, "'exp'"),
    "not-valid-yet": ({"nbf": NOW_S + 31}, "not valid yet"),
    "nbf-not-a-number": ({"nbf": "x"}, "'nbf'"),
    "nbf-after-expiry": ({"nbf": NOW_S + 20, "exp": NOW_S + 10}, "contradict"),
    "issued-in-the-future": ({"iat": NOW_S + 31}, "future"),
    "no-time-of-issue": ({"iat": None}, "'iat'"),
    "issued-after-expiry": ({"iat": NOW_S + 20, "exp": NOW_S + 10}, "contradict"),
    "scope-a-number": ({"scope": 5}, "'scope'"),
    "scope-with-an-empty-one": ({"scope": ["a", " "]}, "'scope'"),
}


@pytest.mark.parametrize(("change", "word"), WRONG.values(), ids=WRONG.keys())
def test_a_token_with_a_wrong_claim_is_refused(change: dict[str, Any], word: str) -> None:
    changed = {name: value for name, value in {**CLAIMS, **change}.items() if value is not None}
    assert word in refused(token(changed))


@pytest.mark.parametrize(
    "change",
    [
        {"exp": NOW_S - 29, "iat": NOW_S - 600},
        {"nbf": NOW_S + 30},
        {"iat": NOW_S + 30},
        {"aud": ["else", "other"]},
        {"scope": ["a", "b"]},
        {"scope": "a b"},
        {"exp": NOW_S + 0.5},
    ],
)
def test_a_token_within_the_clock_skew_or_in_another_form_is_accepted(change: dict[str, Any]) -> None:
    assert check(token({**CLAIMS, **change})).name == "alice"


def test_a_token_for_somebody_is_refused_where_no_audience_is_expected() -> None:
    assert "audience" in refused(token(), TokenTerms())
    without = {name: value for name, value in CLAIMS.items() if name != "aud"}
    assert check(token(without), TokenTerms()).name == "alice"


def test_the_claims_of_subject_and_scope_can_have_other_names() -> None:
    terms = TERMS._replace(subject_claim="client_id", scope_claim="scp")
    assert check(token({**CLAIMS, "client_id": "app"}), terms).name == "app"
    assert "client_id" in refused(token(), terms)
    assert "scp" in refused(token({**CLAIMS, "client_id": "app", "scp": {}}), terms)


def unsigned(header: dict[str, Any], signature: bytes = b"") -> str:
    parts = [json.dumps(header).encode(), json.dumps(CLAIMS).encode(), signature]
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


@pytest.mark.parametrize("alg", ["none", "None", "NONE", "nOnE", "", "RS1", "HS256", "HS512", "dir"])
def test_a_token_without_a_signature_is_refused(alg: str) -> None:
    assert "is not accepted" in refused(unsigned({"alg": alg, "kid": "rsa"}))
    assert "is not accepted" in refused(unsigned({"alg": alg, "kid": "rsa"}, b"x" * 32))


def test_a_public_key_is_never_a_secret() -> None:
    """Key confusion: HMAC with the public key as its key, which everybody has."""
    for secret in (RSA.as_pem(private=False), RSA.as_der(private=False), json.dumps(public(RSA)).encode()):
        signed = unsigned({"alg": "HS256", "kid": "rsa"}).rpartition(".")[0]
        mac = hmac.new(secret, signed.encode(), hashlib.sha256).digest()
        text = f"{signed}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"
        assert "is not accepted" in refused(text)


def test_a_symmetric_key_in_the_set_is_left_out() -> None:
    shared = OctKey.generate_key(256)
    keys = key_set(public(RSA), {**shared.as_dict(private=True), "kid": "oct"})
    assert len(keys) == 1
    assert "is not accepted" in refused(token(None, "HS256", shared, "oct"), keys=keys)


def test_the_signature_of_another_key_is_refused() -> None:
    assert refused(token(None, "RS256", OTHER_RSA)) == "the signature is wrong"
    # Without a key id, each key of the type is tried.
    assert refused(token(None, "RS256", OTHER_RSA, None)) == "the signature is wrong"
    both = key_set(public(OTHER_RSA, kid="old"), public(RSA))
    assert check(token(None, "RS256", RSA, None), keys=both).name == "alice"


def test_an_unknown_key_is_told_apart_so_that_the_set_can_be_read_again() -> None:
    with pytest.raises(UnknownKey):
        check(token(None, "RS256", RSA, "newer"))
    with pytest.raises(UnknownKey):
        check(token(None, "RS256", RSA, "ec"))


@pytest.mark.parametrize(
    "header",
    [
        {"alg": "RS256", "kid": "rsa", "crit": ["x"], "x": 1},
        {"alg": "RS256", "kid": 5},
        {"kid": "rsa"},
        {"alg": 5},
        [],
        {"alg": "RS256", "kid": "rsa", "x": "a" * 5000},
    ],
)
def test_a_malformed_header_is_refused(header: Any) -> None:
    refused(unsigned(header, b"x" * 256))


def test_keys_in_the_header_are_not_used() -> None:
    """A token must not bring the key that checks it."""
    text = jwt.encode(
        {"alg": "RS256", "kid": "rsa", "jwk": public(OTHER_RSA)}, CLAIMS, OTHER_RSA, algorithms=["RS256"]
    )
    assert refused(text) == "the signature is wrong"


def test_a_key_is_used_with_its_own_algorithm_only() -> None:
    keys = key_set(public(RSA, alg="PS256"))
    assert check(token(None, "PS256"), keys=keys).name == "alice"
    with pytest.raises(UnknownKey):
        check(token(None, "RS256"), keys=keys)


def test_keys_that_cannot_check_signatures_are_left_out() -> None:
    weak = {**public(RSA), "n": base64.urlsafe_b64encode(b"\xff" * 128).rstrip(b"=").decode()}
    bad: list[Any] = [
        weak,
        public(RSA, use="enc"),
        public(RSA, key_ops=["encrypt"]),
        public(RSA, key_ops="verify"),
        public(RSA, kid=5),
        {**public(RSA), "e": 65537},
        {**public(RSA), "n": "!"},
        {"kty": "RSA"},
        {**public(EC), "x": "AAAA"},
        {**public(EC), "crv": "secp256k1"},
        {"kty": "OKP"},
        [],
        None,
    ]
    for each in bad:
        assert len(key_set(public(EC), each)) == 1, each
        with pytest.raises(ValueError, match="no RSA key"):
            key_set(each)


def test_the_private_half_of_a_key_is_not_needed_and_not_kept() -> None:
    keys = key_set(RSA.as_dict(private=True))
    assert check(token(), keys=keys).name == "alice"
    assert not any(each.key.is_private for each in keys.candidates("RS256", None))


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b"{", b'{"keys":{}}', b'{"keys":[]}', b"[" * 100_000, b'{"keys":' + b"[1," * 101 + b"1]"],
)
def test_what_is_not_a_key_set_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError):
        WebKeys.parse(text)


def test_no_changed_character_of_a_token_gets_in() -> None:
    text, checked = token(None, "ES256", EC, "ec"), 0
    for position in range(len(text)):
        for other in "AQ_.":
            if other != text[position]:
                mutated = text[:position] + other + text[position + 1 :]
                # The last character of a part has bits that mean nothing.
                if position + 1 < len(text) and text[position + 1] != ".":
                    refused(mutated)
                    checked += 1
    assert checked > 600


@given(st.text(st.sampled_from("eyJ.A_-{}"), max_size=60))
def test_any_text_is_refused(text: str) -> None:
    refused(text)


def exchange(find: Callable[[str], TokenSubject] = check) -> OAuthExchange:
    return OAuthExchange(find)


def message(text: str, start: str = "n,,", more: str = "") -> bytes:
    return f"{start}\1auth=Bearer {text}\1{more}\1".encode()


def test_a_valid_token_completes_the_exchange_with_the_time_it_ends() -> None:
    expected = Completed("alice", b"", (NOW_S + 600) * 1000)
    assert exchange().respond(message(token())) == expected
    assert exchange().respond(message(token(), "n,a=alice,", "traceId=1\1")) == expected
    assert exchange().respond(message(token()).replace(b"Bearer", b"bearer")) == expected


def test_a_refused_token_is_said_to_the_client_before_the_exchange_fails() -> None:
    server = exchange()
    step = server.respond(message(token({**CLAIMS, "aud": "else"})))
    reason = "the audience is not an expected one"
    assert step == Challenge(b'{"status":"invalid_token"}', Refused(reason))
    assert server.respond(b"\1") == Refused("the audience is not an expected one")


def test_a_valid_token_after_a_refused_one_does_not_get_in() -> None:
    server = exchange()
    assert isinstance(server.respond(message("a.b.c")), Challenge)
    assert isinstance(server.respond(message(token())), Refused)


def test_the_authorization_id_is_the_subject() -> None:
    step = exchange().respond(message(token(), "n,a=bob,"))
    assert isinstance(step, Refused)
    assert step.name == "alice"


def test_the_keys_are_read_again_for_a_token_of_an_unknown_one() -> None:
    found, read = [KEYS], []

    def reload() -> None:
        read.append(1)
        found[0] = key_set(public(RSA, kid="newer"))

    text = message(token(None, "RS256", RSA, "newer"))
    step = OAuthExchange(lambda text: check(text, keys=found[0]), reload).respond(text)
    assert read == []
    assert isinstance(step, Computation)
    assert step.compute() == Completed("alice", b"", (NOW_S + 600) * 1000)
    other = OAuthExchange(lambda text: check(text, keys=found[0]), reload)
    step = other.respond(message(token(None, "RS256", RSA, "unknown")))
    assert isinstance(step, Computation)
    assert isinstance(step.compute(), Challenge)
    assert isinstance(other.respond(b"\1"), Refused)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\1",
        b"n,,\1\1",
        b"n,,\1auth=Bearer \1\1",
        b"n,,\1auth=Basic YTpi\1\1",
        b"n,,\1auth=Bearer a.b.c\1auth=Bearer a.b.c\1\1",
        b"n,,\1auth=Bearer a.b.c\1",
        b"p=x,,\1auth=Bearer a.b.c\1\1",
        b"n,,\1auth=Bearer " + b"a" * 200_000 + b".b.c\1\1",
        b"n,,\1auth=Bearer a.b\xff.c\1\1",
    ],
)
def test_a_malformed_message_is_refused_without_looking_at_a_token(text: bytes) -> None:
    def never(found: str) -> TokenSubject:
        raise AssertionError(found)

    assert isinstance(exchange(never).respond(text), Refused)


@given(st.binary(max_size=100))
def test_any_bytes_are_answered(text: bytes) -> None:
    assert isinstance(exchange().respond(text), Refused | Challenge)
