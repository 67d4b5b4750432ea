"""Passwords, tokens and keys go in by every way there is, and come out by none."""

from __future__ import annotations

import json
import logging
import time
import urllib.request
from functools import partial
from pathlib import Path

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey
from support.authorities import server_pem
from support.commands import said
from support.sasl import SaslClient

from cordwood import Broker
from cordwood.protocol import ErrorCode
from cordwood.protocol.apis import ApiKey
from cordwood.protocol.messages import (
    AlterUserScramCredentialsRequest,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    ScramCredentialUpsertion,
)

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
RIGHT, WRONG, SALTED = "right-horse-staple", "guessed-horse-staple", b"salted-by-the-client-horse-stapl"
BROKER = 4


def answers_of(bootstrap: str, tokens: list[str]) -> list[str]:
    """Log in by every mechanism, well and badly; return all that the server says to those who fail."""
    found: list[str] = []
    for mechanism in MECHANISMS:
        for name, password in (("alice", RIGHT), ("alice", WRONG), ("nobody", WRONG)):
            with SaslClient(bootstrap) as client:
                client.shake(mechanism)
                attempt = client.plain if mechanism == "PLAIN" else partial(client.scram, mechanism=mechanism)
                answer = attempt(name, password)
                assert (answer.error_code == 0) == (password == RIGHT)
                found.append(f"{answer.error_message} {bytes(answer.auth_bytes)!r}")
    for token in (f"alice\0{WRONG}".encode(), f"\0{WRONG}\0{WRONG}\0x".encode(), f"n,,n={WRONG}".encode()):
        with SaslClient(bootstrap) as client:
            client.shake("PLAIN" if b"\0" in token else "SCRAM-SHA-256")
            found.append(str(client.token(token).error_message))
    for text in tokens:
        with SaslClient(bootstrap) as client:
            client.shake("OAUTHBEARER")
            answer = client.token(f"n,,\1auth=Bearer {text}\1\1".encode())
            found.append(f"{answer.error_message} {bytes(answer.auth_bytes)!r}")
    return found


def test_no_password_token_or_key_is_in_a_file_a_backup_a_log_a_metric_or_an_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    signer = ECKey.generate_key("P-256", {"kid": "key"})
    keys, data = tmp_path / "keys.json", tmp_path / "data"
    keys.write_text(json.dumps({"keys": [signer.as_dict(private=False)]}))
    now = int(time.time())
    claims = {"sub": "alice", "iat": now, "exp": now + 600}
    tokens = [
        jwt.encode({"alg": "ES256", "kid": "key"}, each, signer, algorithms=["ES256"])
        for each in (claims, {**claims, "exp": now - 600}, {**claims, "aud": "others"})
    ]
    key, _, chain = server_pem().partition("-----BEGIN CERTIFICATE")
    key_lines = [line for line in key.splitlines() if not line.startswith("-")]
    settings = {
        "sasl.enabled.mechanisms": ",".join((*MECHANISMS, "OAUTHBEARER")),
        "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
        "ssl.keystore.key": key,
        "ssl.keystore.certificate.chain": f"-----BEGIN CERTIFICATE{chain}",
        "ssl.key.password": "password-of-the-key",
        "listener.security.protocol.map": "USERS:SASL_PLAINTEXT,TLS:SSL",
        "authorizer.class.name": "cordwood",
        "super.users": "User:alice",
        "cordwood.audit.topic": "__audit",
        "cordwood.metrics.listen": "localhost:0",
        "connection.failed.authentication.delay.ms": "0",
    }
    with Broker(
        data, listen="USERS://localhost:0,TLS://localhost:0", users={"alice": RIGHT}, config=settings
    ) as broker:
        bootstrap = broker.addresses["USERS"]
        answers = answers_of(bootstrap, tokens)
        with SaslClient(bootstrap) as client:
            client.log_in("alice", RIGHT)
            made = [ScramCredentialUpsertion("bela", 1, 4096, b"salt-of-bela", SALTED)]
            (result,) = client.ask(
                ApiKey.ALTER_USER_SCRAM_CREDENTIALS, AlterUserScramCredentialsRequest([], made)
            ).results
            assert result.error_code == ErrorCode.NONE
            asked = DescribeConfigsRequest([DescribeConfigsResource(BROKER, "0", None)], False, True)
            described = client.ask(ApiKey.DESCRIBE_CONFIGS, asked)
            assert "ssl.key.password" in str(described)
            answers.append(str(described))
        assert broker.metrics_url is not None
        with urllib.request.urlopen(broker.metrics_url) as page:
            answers.append(page.read().decode())
        backup = tmp_path / "backup"
        answers.append(said("backup", "--data", data, backup))
    answers.append(said("audit", "tail", "-n", 1000, "--json", "--data", data))
    answers.append(said("doctor", "--json", "--data", data))
    answers += caplog.messages
    assert any("failed to authenticate" in each for each in caplog.messages)
    places = [path for folder in (data, backup) for path in folder.rglob("*") if path.is_file()]
    assert any(path.is_relative_to(backup) and b"scram-user" in path.read_bytes() for path in places)
    answers += [path.read_bytes().decode("latin-1") for path in places]
    secrets = [RIGHT, WRONG, SALTED.decode(), "password-of-the-key", *key_lines]
    secrets += [token.rpartition(".")[2] for token in tokens]
    assert len(secrets) > 7
    for secret in secrets:
        assert not any(secret in each for each in answers), secret
