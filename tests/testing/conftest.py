"""Environments for the tests of the plugin."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.wheels import Environment, built_wheel, environment_with


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of Cordwood."""
    return built_wheel(tmp_path_factory)


@pytest.fixture(scope="session")
def plain_environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The wheel and pytest, and nothing else."""
    return environment_with(tmp_path_factory.mktemp("plain"), wheel, "pytest")


@pytest.fixture(scope="session")
def testing_environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """``cordwood[testing]``, with pytest-xdist and aiokafka."""
    packages = ("pytest", "confluent-kafka", "pytest-xdist", "aiokafka")
    return environment_with(tmp_path_factory.mktemp("testing"), wheel, *packages)
