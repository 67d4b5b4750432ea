"""Make Spark show errors of Cordwood as one sentence, without a Python traceback before it."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any, TypeVar

from cordwood.errors import CordwoodError

Kind = TypeVar("Kind", bound=type)
#: Spark's worker reads it before it passes an exception to the JVM; the worker ends after that.
_HIDE = "SPARK_HIDE_TRACEBACK"


def in_one_sentence(kind: Kind) -> Kind:
    """Class decorator: show errors from the methods of *kind* to the user as one sentence.

    Only errors of Cordwood, which say what is wrong and what to do; others keep their traceback. The
    exception is unchanged.
    """
    for name, function in list(vars(kind).items()):
        if isinstance(function, FunctionType) and (name == "__init__" or not name.startswith("_")):
            setattr(kind, name, _guarded(function))
    return kind


def _guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        try:
            result = function(*arguments, **options)
        except CordwoodError:
            _hide_traceback()
            raise
        return _guarded_iterator(result) if isinstance(result, Iterator) else result

    return call


def _guarded_iterator(rows: Iterator[Any]) -> Iterator[Any]:
    try:
        yield from rows
    except CordwoodError:
        _hide_traceback()
        raise


def _hide_traceback() -> None:
    # Only in a worker of Spark: the environment of a driver belongs to its user.
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None and spec.name.startswith("pyspark."):
        os.environ[_HIDE] = "1"
