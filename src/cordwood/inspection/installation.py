"""The installation that runs: version, kernels and optional packages. Spark is checked by its own room."""

from __future__ import annotations

import importlib.util
import sys
from importlib.metadata import version

from cordwood import kernels
from cordwood.inspection.findings import CheckedItem, Level


def inspect_installation() -> list[CheckedItem]:
    """Return what there is to say about this installation, one finding for each part of it."""
    text = f"{version('cordwood')} on Python {sys.version.split()[0]} at {sys.executable}"
    compiled = (Level.OK, "compiled") if kernels.COMPILED else (Level.NOTE, kernels.NOTICE)
    return [
        CheckedItem("cordwood", Level.OK, text),
        CheckedItem("kernels", *compiled),
        optional_package(
            "confluent_kafka", "confluent-kafka", "--bootstrap needs it: pip install confluent-kafka"
        ),
        optional_package("uvloop", "uvloop", "the server is faster with it: pip install 'cordwood[fast]'"),
    ]


def optional_package(module: str, package: str, step: str) -> CheckedItem:
    """Return whether *package* is installed; *step* says what it is for and how to get it."""
    if importlib.util.find_spec(module) is None:
        return CheckedItem(package, Level.NOTE, "not installed", step)
    return CheckedItem(package, Level.OK, version(package))
