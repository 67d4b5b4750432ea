"""A Spark session with everything in its place. Never required: any session finds ``format("cordwood")``."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from pyspark.sql import SparkSession

from cordwood.spark.java import find_java

#: Filters reach the source, so that it reads less; results are the same without.
_SETTINGS = {
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.log.level": "ERROR",
    "spark.ui.showConsoleProgress": "false",
}
#: A session on this machine alone needs no name of it that others can resolve.
_LOCAL_SETTINGS = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


def ready_session(name: str, master: str | None, config: Mapping[str, str]) -> SparkSession:
    """Return a session, the one that is there if there is one; see `cordwood.spark.session`."""
    master = master or os.environ.get("SPARK_MASTER") or "local[*]"
    if SparkSession.getActiveSession() is None:
        # Read by Spark's scripts and workers, which see nothing else of this process.
        os.environ["JAVA_HOME"] = str(find_java())
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        if master.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName(name).master(master)
    settings = {**_SETTINGS, **(_LOCAL_SETTINGS if master.startswith("local") else {}), **config}
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
