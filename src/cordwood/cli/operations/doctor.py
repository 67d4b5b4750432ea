"""``cordwood doctor``: explain a data directory and this installation, with advice."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from importlib.metadata import version

import click
import msgspec

import cordwood
from cordwood.cli import ExitCode
from cordwood.cli.backends import check_there, data_option, data_path, json_option, refusing
from cordwood.cli.output import print_json, sentence
from cordwood.errors import CordwoodError
from cordwood.inspection import CheckedItem, Level

_MARKS = {Level.OK: "ok", Level.NOTE: "--", Level.ATTENTION: "!!"}


@click.command()
@data_option
@json_option
def doctor(data: str | None, as_json: bool) -> None:
    """Explain a data directory and this installation, and what to do next.

    A quick check that changes nothing and may run beside a server; cordwood verify checks every byte. Lines
    begin with ok, -- (a note) or !! (needs attention).

    Exit status: 0 all is well, 3 something needs attention.

    Example: cordwood doctor --data data
    """
    # First, because a directory that is not a data directory is refused.
    of_directory = _directory(data)
    findings = [*cordwood.inspect_installation(), *_spark(), *of_directory]
    well = all(each.level is not Level.ATTENTION for each in findings)
    if as_json:
        print_json({"well": well, "findings": msgspec.to_builtins(findings)})
    else:
        for each in findings:
            then = f"; {each.next_step}" if each.next_step else ""
            click.echo(sentence(f"{_MARKS[each.level]}  {each.about}: {each.text}{then}"))
    raise SystemExit(ExitCode.OK if well else ExitCode.CHECK_FAILED)


def _directory(data: str | None) -> list[CheckedItem]:
    path = data_path(data)
    if data is None and not os.path.exists(path):
        step = "give one with --data or in CORDWOOD_DATA_DIR"
        return [CheckedItem("data directory", Level.NOTE, f"{path} does not exist", step)]
    check_there(path)
    with refusing(path):
        return cordwood.inspect_directory(path)


def _spark() -> Iterator[CheckedItem]:
    if importlib.util.find_spec("pyspark") is None:
        yield CheckedItem(
            "spark", Level.NOTE, "not installed", "pip install 'cordwood[spark]' installs it, and Java"
        )
        return
    from cordwood.spark.sessions import broken_sources, find_java

    yield CheckedItem("spark", Level.OK, f"pyspark {version('pyspark')}")
    try:
        yield CheckedItem("java", Level.OK, str(find_java()))
    except CordwoodError as error:
        yield CheckedItem("java", Level.ATTENTION, str(error))
    for name, reason in broken_sources().items():
        text = f"cannot be imported, which hides every Python data source from Spark: {reason}"
        yield CheckedItem(name, Level.ATTENTION, text, "repair or uninstall it")
