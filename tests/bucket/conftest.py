"""The stores that tests of the room use."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest
from support.bucket_servers import ENVIRONMENT, ScriptedServer, make_bucket, moto_server, scripted_server

from cordwood.bucket.stores import RemoteStore, open_store

_numbers = count(1)


@pytest.fixture(scope="session")
def moto_url() -> Iterator[str]:
    """A server of S3, with the bucket `bucket`."""
    with moto_server() as url:
        make_bucket(url, "bucket")
        yield url


@pytest.fixture
def s3_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials, where obstore looks for them."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def s3_store(moto_url: str, s3_environment: None) -> RemoteStore:
    """A store under a prefix of its own."""
    url = f"s3://bucket/tests/{next(_numbers)}"
    return open_store(url, endpoint=moto_url, allow_http=True, timeout_ms=120_000)


@pytest.fixture
def scripted() -> Iterator[ScriptedServer]:
    with scripted_server() as server:
        yield server
