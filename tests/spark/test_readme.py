"""What the first page shows of Spark is what happens, run as a stranger would."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def test_the_spark_block_of_the_readme_prints_what_it_says(tmp_path: Path) -> None:
    (block,) = re.findall(r"```py\n(.*?)```", README.read_text(), re.DOTALL)
    (tmp_path / "example.py").write_text(block)
    said = subprocess.run([sys.executable, "example.py"], cwd=tmp_path, capture_output=True, text=True)
    promised = [line[2:] for line in block.splitlines() if line.startswith("# ")]
    assert said.stdout.splitlines() == promised, said.stderr
    assert (tmp_path / "data" / "topics" / "orders").exists()
