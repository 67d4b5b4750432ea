"""The six steps in each language, ready to run: what they need is fetched, and built where it has to be."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from interop.frameworks import SMALL, compiled_java
from interop.kafka_jars import KAFKA_VERSION, java_command
from interop.toolbox import CACHE, HERE, fetch, kept, maven_jars, program


class Program(NamedTuple):
    """A client's program: how it is started, and of which version the client is."""

    client: str
    version: str
    command: list[str]


@cache
def java() -> Program:
    """Return the program with Kafka's own Java client. Java compiles its one file as it starts it."""
    return Program("Java kafka-clients", KAFKA_VERSION, java_command(HERE / "java" / "SixSteps.java"))


@cache
def kafkajs() -> Program:
    """Return the program with kafkajs."""
    source = HERE / "kafkajs"
    pins = [source / "package.json", source / "package-lock.json"]

    def fill(directory: Path) -> None:
        for pin in pins:
            (directory / pin.name).write_bytes(pin.read_bytes())
        fetch([program("npm"), "ci", "--ignore-scripts", "--no-audit", "--no-fund"], directory)

    node = program("node")
    modules = kept("kafkajs", pins, fill) / "node_modules"
    version = json.loads((modules / "kafkajs" / "package.json").read_text())["version"]
    command = [program("env"), f"NODE_PATH={modules}", node, str(source / "six_steps.js")]
    return Program("kafkajs", version, command)


@cache
def franz_go(package: str = ".") -> Program:
    """Return the program with franz-go, or another *package* of its module, built by the Go that is there."""
    source = HERE / "franz-go"
    go = program("go")
    here = {"GOMODCACHE": CACHE / "go" / "modules", "GOCACHE": CACHE / "go" / "build", "GOTOOLCHAIN": "local"}
    environment = {name: str(value) for name, value in here.items()}
    (CACHE / "go").mkdir(parents=True, exist_ok=True)
    kept("go-modules", [source / "go.sum"], lambda _: fetch([go, "mod", "download"], source, environment))
    built = CACHE / "go" / ("six_steps" if package == "." else Path(package).name)
    # What does not compile is our mistake, and no reason to skip anything.
    subprocess.run(
        [go, "build", "-o", built, package], cwd=source, env={**os.environ, **environment}, check=True
    )
    found = re.search(r"franz-go (v\S+)", (source / "go.mod").read_text())
    assert found is not None
    return Program("franz-go", found[1], [str(built)])


def flink(name: str, arguments: Sequence[str]) -> Program:
    """Return the job of a file in flink/, which needs its classes compiled: Flink loads them by name."""
    jars = maven_jars(HERE / "flink" / "pom.xml")
    found = next(jar for jar in jars if jar.name.startswith("flink-connector-kafka-"))
    # As Flink's own scripts do: it looks into classes of java.base.
    opened = [f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in ("util", "lang")]
    classpath = os.pathsep.join(map(str, jars))
    command = compiled_java(HERE / "flink" / f"{name}.java", classpath, arguments, [*SMALL, *opened])
    return Program("Flink", found.stem.removeprefix("flink-connector-kafka-"), command)
