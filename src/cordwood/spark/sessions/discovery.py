"""Find packages that fail to import and thereby hide all Python data sources from Spark."""

from __future__ import annotations

import importlib
import pkgutil

PREFIX = "pyspark_"


def broken_sources() -> dict[str, str]:
    """Return the packages that Spark searches for data sources and cannot import, with the reason.

    Spark does not report them, but says of every Python data source that it is not found.
    """
    broken = {}
    for found in pkgutil.iter_modules():
        if found.name.startswith(PREFIX):
            try:
                importlib.import_module(found.name)
            # A foreign package may raise anything; the result names the package.
            except BaseException as error:
                broken[found.name] = f"{type(error).__name__}: {error}"
    return broken
