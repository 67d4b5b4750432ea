"""Every block of code on a page is run by a test; commands that take minutes exist at least."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
from support.commands import said
from support.pages import Shell, examples, fenced, matches
from test_docs import PAGES, ROOT, blocks

from cordwood.cli import main

#: Which blocks each test runs: the pages, and their languages. Blocks of ``python`` run in `test_docs`.
RUNS = {
    "tests/test_doc_blocks.py::test_the_server_of_the_first_page_says_what_it_promises": "README.md console",
    "tests/test_doc_blocks.py::test_every_target_of_make_and_every_benchmark_exists": (
        "CONTRIBUTING.md console, docs/benchmarks.md console"
    ),
    "tests/test_doc_blocks.py::test_commands_without_output_run_or_are_listed_with_a_reason": (
        "docs/metrics.md sh, docs/spark.md sh"
    ),
    "tests/test_ops_docs.py::test_every_command_prints_what_the_page_says": (
        "docs/audit.md console, docs/coming-from-kafka.md console, docs/operations.md console, "
        "docs/security.md console, docs/security.md py, docs/tenants.md console"
    ),
    "tests/bucket/test_bucket_page.py::test_the_page_does_what_it_says": (
        "docs/bucket.md console, docs/bucket.md py"
    ),
    "tests/cli/test_backup_command.py::test_the_page_prints_what_it_says": "docs/backup.md console",
    "tests/cli/test_checkpoint_command.py::test_the_page_prints_what_it_says": (
        "docs/integrity.md console, docs/integrity.md py"
    ),
    "tests/cli/test_cli_docs.py::test_every_example_prints_what_the_page_says": "docs/cli.md console",
    "tests/spark/test_readme.py::test_the_spark_block_of_a_first_page_prints_what_it_says": (
        "README.md py, docs/for/spark.md py"
    ),
    "tests/spark/test_source.py::test_the_commands_of_the_guide_print_what_it_says": "docs/spark.md console",
    "tests/spark/test_source.py::test_the_guide_does_what_it_shows": "docs/spark.md py",
    "tests/spark/test_source.py::test_the_sql_of_the_guide_runs_as_it_is_written": "docs/spark.md sql",
    "tests/spark/test_tutorial.py::test_the_tutorial_does_what_it_says": (
        "docs/tutorial.md console, docs/tutorial.md py"
    ),
    "tests/testing/test_testing_docs.py::test_the_block_passes_as_it_is_written": "docs/testing.md py",
}
#: Languages of blocks that are code or commands. Others are shown: bytes, settings, documents; those
#: in braces are the site's own.
CODE = {"bash", "console", "py", "pycon", "python", "sh", "shell", "sql"}
SHOWN = {"json", "properties", "text", "yaml"}


def test_every_block_of_code_is_run_by_a_test_that_exists() -> None:
    found: list[str] = []
    for page in PAGES:
        for language, _ in fenced(page.read_text()):
            assert language in CODE | SHOWN or language[:1] == "{", (
                f"{page.name}: a block of {language or 'no language'}"
            )
            if language in CODE - {"python"}:
                found.append(f"{page.relative_to(ROOT)} {language}")
    print(f"{len(found)} blocks")
    assert sorted(set(found)) == sorted(place for run in RUNS.values() for place in run.split(", "))
    for test in RUNS:
        path, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / path).read_text(), test


def test_the_server_of_the_first_page_says_what_it_promises(tmp_path: Path) -> None:
    """It runs until it is told to end, so the reader's shell has it alone."""
    shell, compared = Shell(tmp_path), 0
    for command, promised in examples((ROOT / "README.md").read_text()):
        if not command.startswith("make "):
            try:
                assert matches(promised, shell.run(f"{command} &")), command
            finally:
                shell.close()
            compared += 1
    assert compared


def test_every_target_of_make_and_every_benchmark_exists() -> None:
    """Running them takes minutes; that they are there does not."""
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    benchmarks = {path.stem for path in (ROOT / "benchmarks").glob("*.py")}
    checked = 0
    for page in PAGES:
        for line in re.findall(r"(?:^\$ |`)make ([a-z]+(?: BENCH=\w+)?)", page.read_text(), re.MULTILINE):
            target, _, benchmark = line.partition(" BENCH=")
            assert target in targets, f"{page.name}: make {line}"
            assert not benchmark or benchmark in benchmarks, f"{page.name}: make {line}"
            checked += 1
    print(f"{checked} commands of make")
    assert checked >= 30


#: Commands that are shown without output and not run, each with what it would need.
ONLY_UNDERSTOOD = {
    "cordwood top --metrics https://localhost:9100 --metrics-ca authority.pem "
    "--metrics-token-file metrics.token": "a terminal, and a server with a certificate and a token",
}


def test_commands_without_output_run_or_are_listed_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a page says to a server that is not here has commands and options that there are."""
    monkeypatch.chdir(tmp_path)
    said("topic", "create", "orders", "--data", tmp_path / "data")
    ran, understood = 0, []
    for page in PAGES:
        for block in blocks(page, "sh"):
            for line in re.sub(r"\\\n\s*", "", block).splitlines():
                program, *arguments = shlex.split(line)
                assert program == "cordwood", line
                if line in ONLY_UNDERSTOOD:
                    understood.append(line)
                    check_understood(arguments, tmp_path)
                else:
                    said(*arguments)
                    ran += 1
    print(f"{ran} commands ran")
    assert ran >= 3
    assert understood == list(ONLY_UNDERSTOOD)


def check_understood(arguments: list[str], directory: Path) -> None:
    """Fail unless there is such a command, with these options."""
    for name in arguments:
        if re.fullmatch(r"[\w-]+\.(?:pem|token|properties)", name):
            (directory / name).touch()
    command: click.Command = main
    context, words = click.Context(main), list(arguments)
    while isinstance(command, click.Group):
        found = command.get_command(context, words.pop(0))
        assert found is not None, arguments
        command = found
    command.make_context(" ".join(arguments), words, parent=context)


def test_an_indented_block_is_seen_and_run_as_the_others_are() -> None:
    page = "1. First:\n\n   ```console\n   $ echo axe\n   axe\n   ```\n\n```text\nsaw\n```\n"
    assert list(fenced(page)) == [("console", "$ echo axe\naxe\n"), ("text", "saw\n")]
    assert list(examples(page)) == [("echo axe", "axe\n")]
    assert "cordwood verify --data saved | cut -d: -f1,2" in dict(
        examples((ROOT / "docs/operations.md").read_text())
    )
