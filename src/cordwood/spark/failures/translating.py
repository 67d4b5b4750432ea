"""Translate the failure of a task into the one sentence that it raised."""

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
#: The end of a Python traceback of Cordwood. Spark returns it as text, with its own traces around it.
_RAISED = re.compile(r"cordwood\.errors\.(\w+): (.+)")
#: The prefix of the bridge to Java in Spark's messages: the name of the call, and a Java class.
_CALLED = re.compile(r"\s*An error occurred while calling \S+\s*: [\w.$]+: ")
#: Loggers with which pyspark writes every exception to standard error that it also raises.
_LOGGERS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")


@contextlib.contextmanager
def as_one_sentence() -> Iterator[None]:
    """Turn exceptions of Spark in the block into `JobFailed`.

    Raises:
        JobFailed: With the sentence of the task, or with the first line of Spark's message.
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
    """Return the cause from *text*, the message of a Spark exception."""
    found = _RAISED.findall(text)
    if not found:
        lines = [line.strip() for line in _CALLED.sub("", text, count=1).splitlines() if line.strip()]
        reason = lines[0] if lines else "it gave no reason"
        return JobFailed(f"Spark: {reason}", unexplained=True)
    # The last one is what the traceback ends with; those before it are its causes.
    name, sentence = found[-1]
    kind = getattr(errors, name, CordwoodError)
    return JobFailed(sentence.strip(), corruption=issubclass(kind, _CORRUPTION))
