"""Where commands work: the same tests on files, through the server that holds them, and by its address."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cordwood import Broker


@pytest.fixture(params=["files", "held", "broker"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[object]]:
    """Say where: a directory, one that a server holds, or a server by its address."""
    if request.param == "files":
        yield ["--data", tmp_path / "data"]
        return
    with Broker(tmp_path / "data") as broker:
        yield ["--data", tmp_path / "data"] if request.param == "held" else ["--bootstrap", broker.bootstrap]
