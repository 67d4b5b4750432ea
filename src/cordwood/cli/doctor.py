"""``cordwood doctor``: what a data directory and this installation are like, and what to do about it."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from importlib.metadata import version

import click
import msgspec

from cordwood import kernels
from cordwood.cli import ExitCode
from cordwood.cli.examination import Finding, Level, examine
from cordwood.cli.output import print_json
from cordwood.cli.place import check_there, data_option, data_path, json_option
from cordwood.errors import CordwoodError

_MARKS = {Level.OK: "ok", Level.NOTE: "--", Level.ATTENTION: "!!"}


@click.command()
@data_option
@json_option
def doctor(data: str | None, as_json: bool) -> None:
    """Explain a data directory and this installation, and what to do next.

    A quick look that changes nothing and may run beside a server; cordwood verify checks every byte. Lines
    begin with ok, -- (good to know) or !! (needs attention).

    Exit status: 0 all is well, 3 something needs attention.

    Example: cordwood doctor --data data
    """
    # A directory that is none of ours is refused before anything else is looked at.
    of_directory = list(_directory(data))
    findings = [*_installation(), *of_directory]
    well = all(each.level is not Level.ATTENTION for each in findings)
    if as_json:
        print_json({"well": well, "findings": msgspec.to_builtins(findings)})
    else:
        for each in findings:
            then = f"; {each.next_step}" if each.next_step else ""
            click.echo(f"{_MARKS[each.level]}  {each.about}: {each.text}{then}")
    raise SystemExit(ExitCode.OK if well else ExitCode.CHECK_FAILED)


def _directory(data: str | None) -> Iterator[Finding]:
    path = data_path(data)
    if data is None and not os.path.exists(path):
        step = "give one with --data or in CORDWOOD_DATA_DIR"
        yield Finding("data directory", Level.NOTE, f"there is none at {path}", step)
        return
    check_there(path)
    yield from examine(path)


# --- the installation -------------------------------------------------------------------------------


def _installation() -> Iterator[Finding]:
    text = f"{version('cordwood')} on Python {sys.version.split()[0]} at {sys.executable}"
    yield Finding("cordwood", Level.OK, text)
    if kernels.COMPILED:
        yield Finding("kernels", Level.OK, "compiled")
    else:
        yield Finding("kernels", Level.NOTE, kernels.NOTICE)
    yield _optional("confluent_kafka", "confluent-kafka", "--bootstrap needs it: pip install confluent-kafka")
    yield _optional("uvloop", "uvloop", "the server is faster with it: pip install 'cordwood[fast]'")
    yield from _spark()


def _optional(module: str, package: str, step: str) -> Finding:
    if importlib.util.find_spec(module) is None:
        return Finding(package, Level.NOTE, "not installed", step)
    return Finding(package, Level.OK, version(package))


def _spark() -> Iterator[Finding]:
    if importlib.util.find_spec("pyspark") is None:
        yield Finding(
            "spark", Level.NOTE, "not installed", "pip install 'cordwood[spark]' brings it, and Java"
        )
        return
    from cordwood.spark.discovery import broken_sources
    from cordwood.spark.java import find_java

    yield Finding("spark", Level.OK, f"pyspark {version('pyspark')}")
    try:
        yield Finding("java", Level.OK, str(find_java()))
    except CordwoodError as error:
        yield Finding("java", Level.ATTENTION, str(error))
    for name, reason in broken_sources().items():
        text = f"cannot be imported, which hides every Python data source from Spark: {reason}"
        yield Finding(name, Level.ATTENTION, text, "repair or uninstall it")
