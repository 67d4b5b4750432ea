"""cordwood verify: the same report however many processes read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.commands import run

import cordwood


@pytest.mark.parametrize("damaged", [False, True])
def test_several_processes_report_what_one_does(damaged: bool, tmp_path: Path) -> None:
    with cordwood.open(tmp_path / "data") as log:
        topic = log.topic("orders", 2, {"segment.bytes": "400"})
        for number in range(30):
            topic.append(b"value %d" % number, partition=number % 2)
    if damaged:
        path = next((tmp_path / "data/topics/orders/1/segments").glob("*.log"))
        data = bytearray(path.read_bytes())
        data[70] ^= 1
        path.write_bytes(data)
    one, two = (run("verify", "--data", tmp_path / "data", "--jobs", jobs, "--json") for jobs in (1, 2))
    assert one.exit_code == two.exit_code == (4 if damaged else 0)
    assert json.loads(one.output) == json.loads(two.output)
    assert json.loads(one.output)["segments"] > 5
