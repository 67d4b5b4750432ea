"""Whether Spark finds its Python data sources: one package that fails to import hides all of them."""

from __future__ import annotations

import importlib
import pkgutil

PREFIX = "pyspark_"


def broken_sources() -> dict[str, str]:
    """Return the packages that Spark looks into for data sources and cannot import, with the reason.

    Spark says of each of them nothing, and of every Python data source that it is not found.
    """
    broken = {}
    for found in pkgutil.iter_modules():
        if found.name.startswith(PREFIX):
            try:
                importlib.import_module(found.name)
            # Whatever a stranger's package raises: naming it is the point.
            except BaseException as error:
                broken[found.name] = f"{type(error).__name__}: {error}"
    return broken
