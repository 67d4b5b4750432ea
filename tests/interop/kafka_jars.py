"""Apache Kafka out of its Maven artifacts: clients, command-line tools and broker on one class path."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from interop.toolbox import HERE, maven_jars, program

#: What java/pom.xml asks for.
KAFKA_VERSION = "4.3.0"
#: Most of what is run here lives for a second: the first compiler tier alone starts faster.
QUICK = ("-XX:TieredStopAtLevel=1", "-Xmx256m")
_LOGGING = HERE / "java" / "log4j2.properties"


@cache
def kafka_classpath() -> str:
    """Return Java's class path of all of Apache Kafka, fetched by Maven the first time.

    Raises:
        ToolMissing: If there is no Maven, or it cannot fetch them.
    """
    jars = maven_jars(HERE / "java" / "pom.xml")
    assert any(jar.name == f"kafka-clients-{KAFKA_VERSION}.jar" for jar in jars)
    return os.pathsep.join(map(str, jars))


def java_command(
    main: str | Path, arguments: Sequence[str] = (), options: Sequence[str] = QUICK
) -> list[str]:
    """Return the command that runs a class of Kafka, or a Java source file, with everything of Kafka there.

    Raises:
        ToolMissing: If there is no Java, no Maven, or Kafka cannot be fetched.
    """
    settings = [f"-Dlog4j2.configurationFile={_LOGGING}", *options]
    return [program("java"), *settings, "-cp", kafka_classpath(), str(main), *arguments]


def run_tool(main: str, *arguments: str, given: str = "", seconds: float = 60) -> str:
    """Run one of Kafka's command-line tools and return what it printed; what it complained of is an error."""
    done = subprocess.run(
        java_command(main, arguments), input=given, capture_output=True, text=True, timeout=seconds
    )
    assert done.returncode == 0, f"{main} {' '.join(arguments)}: {done.stdout}{done.stderr}"
    return done.stdout
