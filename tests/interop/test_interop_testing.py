"""The frameworks of docs/testing.md, in an environment made by pip from Cordwood's wheel and the index."""

from __future__ import annotations

import sys
import venv
from pathlib import Path

import pytest
from interop.toolbox import fetch, kept
from support.testing_blocks import FRAMEWORKS, HERMETIC, blocks
from support.wheels import Environment, built_wheel

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with ``cordwood[testing]`` and what pip brings for it."""
    wheel = built_wheel(tmp_path_factory)

    def fill(directory: Path) -> None:
        venv.EnvBuilder(with_pip=True, symlinks=True).create(directory / "venv")

    version = f"py{sys.version_info.major}{sys.version_info.minor}"
    made = Environment(kept(f"testing-{version}", [Path(__file__)], fill) / "venv")
    _install(made, f"{wheel}[testing]", "pytest==9.2.0")
    _install(made, "--force-reinstall", "--no-deps", str(wheel))
    return made


def _install(environment: Environment, *packages: str) -> None:
    # By module: the environment was moved after it was made, so its scripts do not work.
    options = ["--quiet", "--disable-pip-version-check"]
    fetch([environment.python, "-m", "pip", "install", *options, *packages], environment.directory)


@pytest.mark.parametrize("name", [name for name in FRAMEWORKS if name.startswith("test_")])
def test_the_block_passes_with_its_framework(name: str, fresh: Environment, tmp_path: Path) -> None:
    _install(fresh, *FRAMEWORKS[name])
    for each in (name, "shop.py"):
        (tmp_path / each).write_text(blocks()[each])
    assert " passed in " in fresh.run(*HERMETIC, name, directory=tmp_path).stdout


def test_the_plain_block_passes_with_nothing_but_the_extra(fresh: Environment, tmp_path: Path) -> None:
    (tmp_path / "test_orders.py").write_text(blocks()["test_orders.py"])
    assert "2 passed in " in fresh.run(*HERMETIC, "test_orders.py", directory=tmp_path).stdout
