"""The recording on the first page shows what its commands print."""

from __future__ import annotations

import importlib.util
import re
import types
from html import unescape
from itertools import groupby
from pathlib import Path

from support.patience import slowdown

ROOT = Path(__file__).parents[1]


def recorder() -> types.ModuleType:
    """Import the script that records."""
    spec = importlib.util.spec_from_file_location("record", ROOT / "docs/pictures/record.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def normalised(lines: list[tuple[str, str]]) -> list[str]:
    """Return the commands and what each printed, without what differs: sizes, ports and line breaks."""
    found = []
    for kind, group in groupby(lines, key=lambda line: line[0]):
        texts = [text for _, text in group]
        if kind == "command":
            found += texts
        else:
            found.append(re.sub(r":\d+|[\d,]+ bytes", "#", " ".join(texts)))
    return found


def test_the_recording_is_what_its_commands_print_now() -> None:
    """If this fails, run `python docs/pictures/record.py`."""
    script = recorder()
    shown = re.findall(r'<text [^>]*class="(\w+)"[^>]*>(.*)</text>', script.PICTURE.read_text())
    in_picture = normalised([(kind, unescape(text)) for kind, text in shown])
    printed = normalised(script.recorded(slowdown()))
    assert len(printed) == 9
    assert in_picture == printed


def test_sizes_and_ports_differ_from_run_to_run_and_nothing_else_may() -> None:
    assert normalised([("output", "ready on h:1"), ("output", "1,234 bytes, 1 topic")]) == [
        "ready on h# #, 1 topic"
    ]
