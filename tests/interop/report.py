"""What passed: kept in ``results.json``, which tables of docs/protocol.md are made from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypedDict
from unittest import SkipTest

RESULTS = Path(__file__).parent / "results.json"
#: What every client is put through, in this order.
STEPS = ("create", "produce", "idempotent", "consume", "group", "admin")
#: How clients log in over TLS: with each mechanism of SASL, and with a certificate.
LOGINS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "certificate")
PASSED, FAILED, ABSENT = "passed", "FAILED", "-"


class Row(TypedDict):
    """What became of each check of one client or tool."""

    version: str
    checks: dict[str, str]


Results = dict[str, dict[str, Row]]
"""The rows of each section, by the name of the client or tool."""


def load(path: Path = RESULTS) -> Results:
    """Return what is kept."""
    results: Results = json.loads(path.read_text()) if path.exists() else {}
    return results


class Report:
    """What became of the checks of one run."""

    def __init__(self) -> None:
        self.results: Results = {}

    @contextmanager
    def check(self, section: str, name: str, version: str, check: str) -> Iterator[None]:
        """Report *check* as passed if the context ends well, as failed if not; skipped is neither."""
        try:
            yield
        except SkipTest:
            raise
        except BaseException:
            self.note(section, name, version, check, FAILED)
            raise
        self.note(section, name, version, check, PASSED)

    def note(self, section: str, name: str, version: str, check: str, outcome: str) -> None:
        """Report one outcome."""
        row = self.results.setdefault(section, {}).setdefault(name, Row(version=version, checks={}))
        row["version"] = version
        row["checks"][check] = outcome

    def save(self, path: Path = RESULTS) -> None:
        """Replace the checks that were run; others keep their outcome as long as the version is the same.

        Nothing in them changes from run to run, times least of all: a difference is news. A check that is
        not made any more stays until the file is removed before a run of everything.
        """
        kept = load(path)
        for section, rows in self.results.items():
            of_section = kept.setdefault(section, {})
            for name, row in rows.items():
                before = of_section.get(name)
                known = before["checks"] if before is not None and before["version"] == row["version"] else {}
                of_section[name] = Row(version=row["version"], checks={**known, **row["checks"]})
        ordered = {section: dict(sorted(kept[section].items())) for section in sorted(kept)}
        path.write_text(json.dumps(ordered, indent=2, ensure_ascii=False) + "\n")
