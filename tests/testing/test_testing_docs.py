"""Each block of docs/testing.md is a file of tests, and passes. Those of frameworks run in `make interop`."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.testing_blocks import FRAMEWORKS, HERMETIC, blocks
from support.wheels import Environment


@pytest.mark.parametrize("name", sorted(set(blocks()) - set(FRAMEWORKS)))
def test_the_block_passes_as_it_is_written(
    name: str, testing_environment: Environment, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(blocks()[name])
    output = testing_environment.run(*HERMETIC, name, directory=tmp_path).stdout
    assert " passed in " in output
    if "unittest.main()" in blocks()[name]:
        assert "OK" in testing_environment.run(name, directory=tmp_path).stdout


def test_every_block_is_run_here_or_with_its_framework() -> None:
    assert set(FRAMEWORKS) < set(blocks())
    assert len(blocks()) >= 12
