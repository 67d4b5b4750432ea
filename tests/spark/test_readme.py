"""What the first pages show of Spark is what happens, run as a stranger would."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", ["README.md", "docs/for/spark.md"])
def test_the_spark_block_of_a_first_page_prints_what_it_says(tmp_path: Path, page: str) -> None:
    (block,) = re.findall(r"```py\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    (tmp_path / "example.py").write_text(block)
    said = subprocess.run([sys.executable, "example.py"], cwd=tmp_path, capture_output=True, text=True)
    promised = [line[2:] for line in block.splitlines() if line.startswith("# ")]
    assert said.stdout.splitlines() == promised, said.stderr
    assert (tmp_path / "data" / "topics" / "orders").exists()
