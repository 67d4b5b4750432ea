"""The Spark that tests share: made when it is first wanted, and made again where it is found unusable."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from py4j.clientserver import SHUTDOWN_FINALIZER_WORKER
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.context import SQLContext

import cordwood
from support.patience import SECONDS_MAX

_numbers = itertools.count(1)


def start(home: Path) -> SparkSession:
    """Start a local Spark of two cores, whose tasks are tried up to four times; its files go to *home*."""
    return cordwood.spark.session(
        "cordwood tests",
        master="local[2,4]",
        config={
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.session.timeZone": "UTC",
            # Compiling code for each query takes longer than a few rows do without.
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            "spark.sql.warehouse.dir": str(home / "warehouse"),
            "spark.driver.extraJavaOptions": f"-Dderby.system.home={home / 'derby'}",
        },
    )


def is_usable(session: SparkSession) -> bool:
    """Return whether a session's Java runs, answers what it is asked, and has not stopped.

    Costs two round trips. A connection that was broken off within a request answers that one first, once it
    is done: so the answer is compared, and not waited for without end.
    """
    gateway = SparkContext._gateway
    if gateway is None or gateway.proc.poll() is not None:
        return False
    number = next(_numbers)
    try:
        with _impatient(gateway):
            answered = session.sparkContext._jvm.java.lang.Integer.parseInt(str(number))  # type: ignore[union-attr]
            return answered == number and not session.sparkContext._jsc.sc().isStopped()
    except (AttributeError, OSError, Py4JError, ValueError):
        return False


@contextlib.contextmanager
def _impatient(gateway: Any) -> Iterator[None]:
    """Wait for Java's answers to this thread only for a while."""
    connection = gateway._gateway_client.get_thread_connection()
    if connection is None or connection.socket is None:
        yield
        return
    connection.socket.settimeout(SECONDS_MAX)
    try:
        yield
    finally:
        if connection.socket is not None:
            connection.socket.settimeout(None)


def kill() -> None:
    """End Java, so that nobody waits for its answers any more."""
    if SparkContext._gateway is not None:
        SparkContext._gateway.proc.kill()


def stop(session: SparkSession) -> None:
    """Stop a session with its Java, by force where it is unusable. There is no session afterwards."""
    gateway: Any = SparkContext._gateway
    process: subprocess.Popen[bytes] = gateway.proc
    if is_usable(session):
        session.stop()
    else:
        kill()
        _forget(session)
    # Spark's Java ends when this pipe does.
    if process.stdin is not None:
        process.stdin.close()
    with contextlib.suppress(OSError, Py4JError):
        gateway.shutdown_callback_server()
    with contextlib.suppress(OSError, Py4JError):
        gateway.close()
    gateway._gateway_client.finalizer_deque.appendleft(SHUTDOWN_FINALIZER_WORKER)
    try:
        process.wait(SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    SparkContext._gateway = SparkContext._jvm = None


def _forget(session: SparkSession) -> None:
    """Do what `SparkSession.stop` does in this process, without asking Java."""
    session.sparkContext._jsc = None
    session.sparkContext.stop()
    SparkSession._instantiatedSession = SparkSession._activeSession = None
    SQLContext._instantiatedContext = None
