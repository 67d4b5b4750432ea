"""``cordwood doctor``: what this installation lacks, and what to do about it."""

from __future__ import annotations

import importlib.util
import sys
from importlib.metadata import version
from typing import NamedTuple

import click

from cordwood import kernels
from cordwood.cli import ExitCode
from cordwood.errors import CordwoodError


class Finding(NamedTuple):
    """One line: what was looked at, whether it is well, and what it is or what to do."""

    about: str
    well: bool
    text: str


@click.command()
def doctor() -> None:
    """Look over this installation: interpreter, kernels, Java, Spark's data sources.

    Exit status: 0 all is well, 3 something needs attention.
    """
    findings = [_python(), _kernels(), *_spark()]
    for finding in findings:
        click.echo(f"{'ok' if finding.well else '!!'}  {finding.about}: {finding.text}")
    raise SystemExit(ExitCode.OK if all(each.well for each in findings) else ExitCode.CHECK_FAILED)


def _python() -> Finding:
    return Finding("python", True, f"{sys.version.split()[0]} at {sys.executable}")


def _kernels() -> Finding:
    return Finding("kernels", kernels.COMPILED, "compiled" if kernels.COMPILED else kernels.NOTICE)


def _spark() -> list[Finding]:
    if importlib.util.find_spec("pyspark") is None:
        return [Finding("spark", True, "not installed; pip install 'cordwood[spark]' brings it")]
    from cordwood.spark.discovery import broken_sources
    from cordwood.spark.java import find_java

    findings = [Finding("spark", True, f"pyspark {version('pyspark')}")]
    try:
        findings.append(Finding("java", True, str(find_java())))
    except CordwoodError as error:
        findings.append(Finding("java", False, str(error)))
    for name, reason in broken_sources().items():
        text = f"cannot be imported, which hides every Python data source from Spark: {reason}"
        findings.append(Finding(name, False, text))
    return findings
