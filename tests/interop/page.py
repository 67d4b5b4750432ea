"""Makes the tables of docs/protocol.md: what is served, and what it was tried with.

``make interop`` writes them anew after it ran; ``PYTHONPATH=tests python -m interop.page`` does nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from interop.report import ABSENT, LOGINS, PASSED, STEPS, Results, load

from cordwood.protocol.apis import APIS
from cordwood.protocol.schema import Versions
from cordwood.server.service import HANDLERS

PAGE = Path(__file__).parents[2] / "docs" / "protocol.md"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _range(versions: Versions) -> str:
    ends = dict.fromkeys([versions.first, versions.last])
    return " to ".join(map(str, ends))


def served() -> str:
    """Return the table of the APIs that are served."""
    rows = []
    for key in sorted(HANDLERS):
        api = APIS[key]
        told = "" if api.advertised == api.versions else _range(api.advertised)
        rows.append([str(int(key)), key.name.title().replace("_", ""), _range(api.versions), told])
    return _table(["Key", "API", "Versions", "Told to clients, if not the same"], rows)


def clients(results: Results) -> str:
    """Return the table of the clients and their steps."""
    rows = [
        [name, row["version"], *(row["checks"].get(step, ABSENT) for step in STEPS)]
        for name, row in results.get("clients", {}).items()
    ]
    return _table(["Client", "Version", *STEPS], rows)


def secure(results: Results) -> str:
    """Return the table of the clients and how they logged in over TLS."""
    rows = []
    for name, row in results.get("secure", {}).items():
        checks = row["checks"]
        others = [f"{check}: {outcome}" for check, outcome in checks.items() if check not in LOGINS]
        logins = [checks.get(login, ABSENT) for login in LOGINS]
        rows.append([name, row["version"], *logins, "; ".join(others)])
    return _table(["Client", "Version", *LOGINS, "Besides"], rows)


def tools(results: Results, section: str = "tools", head: str = "Tool") -> str:
    """Return the table of the tools and what was done with each."""
    rows = []
    for name, row in results.get(section, {}).items():
        passed = [check for check, outcome in row["checks"].items() if outcome == PASSED]
        failed = [check for check, outcome in row["checks"].items() if outcome != PASSED]
        rows.append([name, row["version"], "; ".join(passed), "; ".join(failed) or ABSENT])
    return _table([head, "Version", "Passed", "Failed"], rows)


def frameworks(results: Results) -> str:
    """Return the table of the frameworks and what each went through."""
    return tools(results, "frameworks", "Framework")


def summary(results: Results) -> str:
    """Return what a run has to show."""
    return "\n\n".join(make(results) for make in (clients, secure, frameworks, tools))


def made(text: str, results: Results) -> str:
    """Return the page *text* with its tables made anew. The rest of it is written by hand."""
    tables = {
        "served": served(),
        "clients": clients(results),
        "secure": secure(results),
        "frameworks": frameworks(results),
        "tools": tools(results),
    }
    for name, table in tables.items():
        start = f"<!-- made: {name} -->\n"
        before, found, rest = text.partition(start)
        _, end, after = rest.partition("<!-- end -->")
        assert found, f"{PAGE.name} has no place for the table {name}"
        text = f"{before}{start}{table}\n{end}{after}"
    return text


def write() -> None:
    """Write the page."""
    PAGE.write_text(made(PAGE.read_text(), load()))


if __name__ == "__main__":
    write()
