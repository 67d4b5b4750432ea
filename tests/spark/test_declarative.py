"""The example pipeline, run by our command and by Spark's own: topics in, tables and a topic out, once."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from support.commands import COMMAND, environment, refused, run

import cordwood
from cordwood.spark.sessions.pipelines_main import join_settings

EXAMPLE = Path(__file__).parents[2] / "examples" / "pipeline"
EIGHT = datetime(2024, 5, 6, 8, tzinfo=UTC)
ITEMS = ("axe", "saw")
Windows = dict[tuple[str, str], tuple[int, int]]


class Pipeline:
    """A copy of the example with a storage and a data directory of its own."""

    def __init__(self, home: Path) -> None:
        self.home, self.data, self.storage = home, home / "data", home / "storage"
        shutil.copytree(EXAMPLE, home / "pipeline")
        self.spec = home / "pipeline" / "spark-pipeline.yml"
        said = self.spec.read_text()
        assert "storage: file:///tmp/cordwood-revenue\n" in said
        self.spec.write_text(said.replace("file:///tmp/cordwood-revenue\n", f"file://{self.storage}\n"))
        self.placed: list[tuple[int, int]] = []

    def produce(self, orders: Sequence[tuple[int, int]], *, paid: bool = True) -> None:
        """Send orders, given by number and by the minutes after eight that they were placed."""
        self.placed += orders
        with cordwood.open(self.data) as log:
            log.topic("revenue")
            for number, minute in orders:
                time = (EIGHT + timedelta(minutes=minute)).isoformat()
                order = {"order": number, "item": ITEMS[number % 2], "amount": number + 1, "placed_at": time}
                log.topic("orders", 2).append(json.dumps(order).encode(), key=b"%d" % number)
                if paid:
                    payment = {"order": number, "paid": number, "paid_at": time}
                    log.topic("payments").append(json.dumps(payment).encode(), key=b"%d" % number)

    def run(self) -> str:
        """Run it with our command."""
        command = [*COMMAND, "pipeline", "run", self.spec, "--data", self.data, "--master", "local[2]"]
        return self._run(command, environment())

    def run_plainly(self) -> str:
        """Run it with Spark's own command, as its file says."""
        database = f"jdbc:derby:;databaseName={self.storage}/catalogue;create=true"
        settings = {
            "spark.sql.catalogImplementation": "hive",
            "spark.sql.warehouse.dir": f"{self.storage}/tables",
            "spark.hadoop.javax.jdo.option.ConnectionURL": database,
        }
        command = [Path(sys.executable).parent / "spark-pipelines", "run", "--spec", self.spec]
        for name, value in settings.items():
            assert f"--conf {name}=" in EXAMPLE.joinpath("spark-pipeline.yml").read_text().replace("'", "")
            command += ["--conf", f"{name}={value}"]
        surroundings = {"CORDWOOD_DATA_DIR": str(self.data), "PYSPARK_PYTHON": sys.executable}
        return self._run(command, environment({**surroundings, "SPARK_LOCAL_IP": "127.0.0.1"}))

    def _run(self, command: Sequence[object], surroundings: Mapping[str, str]) -> str:
        done = subprocess.run(
            [str(each) for each in command],
            capture_output=True,
            text=True,
            cwd=self.home,
            env=dict(surroundings),
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        return done.stdout

    def revenue(self) -> list[dict[str, Any]]:
        """Return the records of the topic that the pipeline writes."""
        with cordwood.open(self.data, read_only=True) as log:
            return [json.loads(record.value or b"") for record in log.topic("revenue").read(0)]

    def table(self, name: str) -> list[dict[str, Any]]:
        files = [str(file) for file in (self.storage / "tables" / name).glob("*.parquet")]
        rows: list[dict[str, Any]] = ds.dataset(files).to_table().to_pylist()
        return rows


def by_window(rows: Sequence[dict[str, Any]]) -> Windows:
    found: Windows = {}
    for row in rows:
        name = (row["start"], row["item"])
        assert name not in found, f"{name} was written twice"
        found[name] = (row["orders"], row["revenue"])
    return found


def expected(orders: Sequence[tuple[int, int]], until_minute: int) -> Windows:
    """Return the windows that end at or before *until_minute*, with what is in them."""
    found: Windows = {}
    for number, minute in orders:
        first = minute // 15 * 15
        if first + 15 <= until_minute:
            start = (EIGHT + timedelta(minutes=first)).strftime("%Y-%m-%dT%H:%M:%S.000Z")
            orders_so_far, revenue = found.get((start, ITEMS[number % 2]), (0, 0))
            found[start, ITEMS[number % 2]] = (orders_so_far + 1, revenue + number + 1)
    return found


@pytest.mark.timeout(600)
def test_each_run_adds_what_came_since_the_last_and_nothing_twice(tmp_path: Path) -> None:
    """Our command and Spark's own go on from each other; an order sent twice, or too late, is not counted.

    Of payments nothing came: what there was before the first run is not taken again by the second.
    """
    pipeline = Pipeline(tmp_path)
    first = [(number, number) for number in range(60)]
    pipeline.produce([*first, first[-1]])
    flows = ["closed_windows", "orders", "payments", "revenue_by_window"]
    assert pipeline.run().split() == [
        "flow",
        "state",
        *(word for flow in flows for word in (flow, "completed")),
    ]
    before = pipeline.revenue()
    assert by_window(before) == expected(first, 59 - 10)
    assert sorted(row["order"] for row in pipeline.table("orders")) == list(range(60))
    assert len(pipeline.table("payments")) == 60

    late, too_late, again = (200, 51), (202, 5), (59, 59)
    second = [(number, number) for number in range(60, 101)]
    pipeline.produce([late, too_late, again, *second], paid=False)
    pipeline.run_plainly()
    after = pipeline.revenue()
    assert after[: len(before)] == before
    assert by_window(after) == expected([*first, late, *second], 100 - 10)
    assert sorted(row["order"] for row in pipeline.table("orders")) == [*range(101), 200]
    view = pipeline.table("revenue_by_window")
    assert sum(row["ordered"] for row in view) == sum(range(1, 102)) + 201
    assert sum(row["paid"] for row in view) == sum(range(60))
    assert len(pipeline.table("payments")) == 60
    assert not list(tmp_path.glob("spark-warehouse"))


def test_a_full_refresh_says_what_it_does_and_asks(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path)
    result = run("pipeline", "run", pipeline.spec, "--full-refresh", "--data", pipeline.data, stdin="n\n")
    assert result.exit_code == 1
    assert "keep their records and get all records once more" in result.stderr
    assert not pipeline.storage.exists()


def test_what_cannot_be_run_is_refused_in_one_sentence(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path)
    (tmp_path / "broken.yml").write_text("name: [")
    (tmp_path / "other.yml").write_text("orders: 3\n")
    (tmp_path / "homeless.yml").write_text("name: a\nlibraries: []\n")
    sentences = {
        ("none.yml",): "none.yml cannot be read: No such file or directory",
        (tmp_path / "broken.yml",): "broken.yml is not YAML: ",
        (tmp_path / "other.yml",): "other.yml is not the file of a pipeline",
        (tmp_path / "homeless.yml",): "has no storage: give one there, or with --storage",
        (pipeline.spec, "--master", "spark://host:7077"): "or on a Spark Connect server, sc://HOST, not on",
    }
    for arguments, sentence in sentences.items():
        assert sentence in refused("pipeline", "run", *arguments), arguments
    assert not pipeline.storage.exists()


def test_a_run_that_fails_says_why_in_one_sentence_and_where_the_rest_is(tmp_path: Path) -> None:
    (tmp_path / "flows").mkdir()
    (tmp_path / "flows" / "view.sql").write_text("CREATE MATERIALIZED VIEW a AS SELECT * FROM nowhere;")
    spec = tmp_path / "spec.yml"
    spec.write_text(
        f"name: a\nstorage: file://{tmp_path}/storage\nlibraries: [{{glob: {{include: flows/**}}}}]\n"
    )
    found = refused("pipeline", "run", spec, "--master", "local[1]")
    assert "`nowhere` cannot be found" in found
    assert found.startswith("Spark: [TABLE_OR_VIEW_NOT_FOUND] ")
    assert found.endswith(f"its log is {tmp_path}/storage/last-run.log")


def test_all_settings_reach_the_server_in_however_many_parts_they_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark hands them on ten at a time and would keep the last ten."""
    monkeypatch.setenv("PYSPARK_REMOTE_INIT_CONF_LEN", "2")
    monkeypatch.setenv("PYSPARK_REMOTE_INIT_CONF_0", '{"a": "1"}')
    monkeypatch.setenv("PYSPARK_REMOTE_INIT_CONF_1", '{"b": "2"}')
    join_settings({"c": "3"})
    assert os.environ["PYSPARK_REMOTE_INIT_CONF_LEN"] == "1"
    assert json.loads(os.environ["PYSPARK_REMOTE_INIT_CONF_0"]) == {"a": "1", "b": "2", "c": "3"}
