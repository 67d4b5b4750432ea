"""What went wrong in a task, as the one sentence that it raised there."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger

from cordwood import errors
from cordwood.errors import CordwoodError, CorruptRange, FrameError, JobFailed, MetadataDamaged

_CORRUPTION = (CorruptRange, FrameError, MetadataDamaged)
#: How Python ends a traceback of ours. Spark gives it as text, with traces of its own around.
_RAISED = re.compile(r"cordwood\.errors\.(\w+): (.+)")
#: How the bridge to Java begins what Spark says: with its own name of the call, and a class of Java.
_CALLED = re.compile(r"\s*An error occurred while calling \S+\s*: [\w.$]+: ")
#: What pyspark writes to standard error of every exception that it raises as well.
_LOGGERS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")


@contextlib.contextmanager
def as_one_sentence() -> Iterator[None]:
    """Turn what Spark raises in the block into `JobFailed`.

    Raises:
        JobFailed: With the sentence of the task, or with the first line of Spark's own words.
    """
    try:
        with _unlogged():
            yield
    except (PySparkException, Py4JError) as error:
        raise explained(str(error)) from error


@contextlib.contextmanager
def _unlogged() -> Iterator[None]:
    loggers = [PySparkLogger.getLogger(name) for name in _LOGGERS]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, disabled in zip(loggers, before, strict=True):
            logger.disabled = disabled


def explained(text: str) -> JobFailed:
    """Return what *text*, of an exception of Spark, says about the cause."""
    found = _RAISED.findall(text)
    if not found:
        lines = [line.strip() for line in _CALLED.sub("", text, count=1).splitlines() if line.strip()]
        return JobFailed(f"Spark: {lines[0] if lines else 'it gave no reason'}")
    # The last one is what the traceback ends with; those before it are its causes.
    name, sentence = found[-1]
    kind = getattr(errors, name, CordwoodError)
    return JobFailed(sentence.strip(), corruption=issubclass(kind, _CORRUPTION))
