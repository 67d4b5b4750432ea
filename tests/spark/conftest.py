"""One Spark for all tests of this folder: it takes seconds to start and is the same for all of them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from support import shared_spark
from support.timeouts import at_limit, drop_shared_fixtures

from cordwood.spark.sessions.java import find_java

_session_key = pytest.StashKey[SparkSession]()


@pytest.fixture(scope="session", autouse=True)
def java() -> None:
    """Let every Spark of these tests run on the same Java, those in processes of their own too."""
    os.environ["JAVA_HOME"] = str(find_java())


@pytest.fixture(scope="session")
def spark(
    java: None, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkSession]:
    """A local Spark of two cores, whose tasks are tried up to four times."""
    session = shared_spark.start(tmp_path_factory.mktemp("spark"))
    request.config.stash[_session_key] = session
    at_limit.append(shared_spark.kill)
    yield session
    at_limit.remove(shared_spark.kill)
    del request.config.stash[_session_key]
    shared_spark.stop(session)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Have a Spark that an earlier test left unusable made again."""
    session = item.config.stash.get(_session_key, None)
    if session is not None and not shared_spark.is_usable(session):
        drop_shared_fixtures(item)
