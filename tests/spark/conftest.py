"""One Spark for all tests of this folder: it takes seconds to start and is the same for all of them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

import cordwood
from cordwood.spark.java import find_java


@pytest.fixture(scope="session", autouse=True)
def java() -> None:
    """Let every Spark of these tests run on the same Java, those in processes of their own too."""
    os.environ["JAVA_HOME"] = str(find_java())


@pytest.fixture(scope="session")
def spark(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local Spark of two cores, whose tasks are tried up to four times."""
    home = tmp_path_factory.mktemp("spark")
    session = cordwood.spark.session(
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
    yield session
    session.stop()
