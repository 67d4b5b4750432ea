"""A configured Spark session. Never required: any session finds ``format("cordwood")``."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from pyspark.sql import SparkSession

from cordwood.spark.sessions.java import find_java

#: Filters are pushed to the source, so that it reads less; results are the same without.
_SETTINGS = {
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.log.level": "ERROR",
    "spark.ui.showConsoleProgress": "false",
}
#: A local session needs no host name that other machines can resolve.
_LOCAL_SETTINGS = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


def ready_session(name: str, master: str | None, config: Mapping[str, str]) -> SparkSession:
    """Return a session, the active one if there is one; see `cordwood.spark.session`."""
    master = master or os.environ.get("SPARK_MASTER") or "local[*]"
    if SparkSession.getActiveSession() is None:
        # Spark's scripts and workers read these variables.
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
