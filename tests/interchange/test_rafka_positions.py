"""Positions of 32 bits in the index of Rafka: an export begins a new segment before they overflow."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.commands import refused, said

import cordwood
from cordwood.formats.shared import rafka
from cordwood.interchange import rafka as exporter


def test_positions_of_32_bits_end_a_segment_of_an_export_before_they_overflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert exporter._POSITION_MAX == 2**32 - 1
    monkeypatch.setattr(exporter, "_POSITION_MAX", 300)
    data, out = tmp_path / "data", tmp_path / "out"
    values = [b"%d" % number + b"." * 50 for number in range(20)]
    with cordwood.open(data) as log:
        log.topic("t").append_many([(None, value) for value in values])
        log.topic("large").append(b"." * 400)
    said("export", "--data", data, "-t", "t", "--to", "rafka", out)
    logs = sorted(out.glob("*.log"), key=lambda path: int(path.stem))
    assert len(logs) > 2
    assert max(path.stat().st_size for path in logs) <= 300
    found = [
        bytes(rafka.parse_record(path.read_bytes(), entry))
        for path in logs
        for entry in rafka.parse_entries(path.with_suffix(".oidx").read_bytes())
    ]
    assert found == values
    assert "400 bytes" in refused("export", "--data", data, "-t", "large", "--to", "rafka", tmp_path / "x")
