"""Declarative pipelines: Spark's own command, with Java, a catalogue and the data directory in their place.

``spark-pipelines run`` keeps the tables it made in a catalogue, and finds none of them in the next run if
that one was in memory: then it fails, since their files are there already. So the catalogue is kept beside
the checkpoints, in the storage of the pipeline. That is told on the command line, because Spark does not take
it from the file of the pipeline. Both are of Spark 4.3.
"""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pyspark

from cordwood.errors import CordwoodError, JobFailed
from cordwood.spark import pipelines_main
from cordwood.spark.failures import explained
from cordwood.spark.java import find_java

#: What Spark's command needs beside pyspark, as modules; each is asked for before Java starts.
NEEDED = ("yaml", "grpc", "grpc_status", "google.rpc", "zstandard", "pandas")
_EVENT = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d: (.+)")
_FLOW = re.compile(r"Flow '?([^' ]+)'? (?:is|has) ([A-Z]+)")
#: How Spark says why a flow failed, and how Python and Java say why they end.
_FAILED = re.compile(r"^Error: (.+)", re.MULTILINE)
_ENDED = re.compile(r"^(?:Exception in thread \"main\" )?[\w.]+(?:Exception|Error): \s*(.+)", re.MULTILINE)


@dataclass(frozen=True)
class PipelineOptions:
    """What to run. *storage* replaces the one that the file says; *data* is for the flows to see."""

    spec: str
    data: str
    storage: str | None = None
    master: str | None = None
    full_refresh: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PipelineReport:
    """How each flow of a run ended, and where Spark's own words are."""

    name: str
    flows: dict[str, str]
    log: str


def run_pipeline(
    options: PipelineOptions, tell: Callable[[str], None] = lambda event: None
) -> PipelineReport:
    """Run a pipeline to its end, in processes of its own, calling *tell* with what Spark says of its flows.

    What was published stays published whatever happens; the next run goes on from there.

    Raises:
        CordwoodError: If the file is none of a pipeline, or something that is needed is not there.
        JobFailed: If the run fails: one sentence, and where the rest is to be read.
    """
    for name in NEEDED:
        _imported(name)
    spec = load_spec(options.spec)
    storage = options.storage or spec.get("storage")
    if not storage:
        raise CordwoodError(f"{options.spec} says no storage: give one there, or with --storage")
    local = local_path(str(storage))
    command = _command(options, local)
    if local is not None:
        local.mkdir(parents=True, exist_ok=True)
    flows: dict[str, str] = {}
    with _log(local) as log, _started(command, _surroundings(options, local)) as process:
        assert process.stdout is not None
        for event in _events(process.stdout, log):
            tell(event)
            if found := _FLOW.match(event):
                flows[found[1].rpartition(".")[2]] = found[2].lower()
    if process.returncode:
        raise _failure(Path(log.name))
    return PipelineReport(str(spec["name"]), flows, log.name)


def load_spec(path: str) -> dict[str, Any]:
    """Return what the file of a pipeline says.

    Raises:
        CordwoodError: If it cannot be read, or is no such file.
    """
    yaml = _imported("yaml")
    try:
        with open(path, encoding="utf-8") as file:
            found = yaml.safe_load(file)
    except OSError as error:
        raise CordwoodError(f"{path} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise CordwoodError(f"{path} is no YAML: {reason}") from None
    if not isinstance(found, dict) or "name" not in found or "libraries" not in found:
        raise CordwoodError(f"{path} is not the file of a pipeline: that has a name, a storage and libraries")
    return found


def local_path(storage: str) -> Path | None:
    """Return the directory that a storage is, None if it is not on this machine's disk."""
    if "://" in storage and not storage.startswith("file://"):
        return None
    return Path(re.sub(r"^file:(//)?", "", storage)).absolute()


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise CordwoodError(
            f"declarative pipelines need {error.name}: pip install 'cordwood[pipelines]'"
        ) from error


def _command(options: PipelineOptions, storage: Path | None) -> list[str]:
    master = options.master or os.environ.get("SPARK_MASTER") or "local[*]"
    if not master.startswith(("local", "sc://")):
        raise CordwoodError(
            f"a pipeline runs here, with local[N], or on a Spark Connect server, sc://HOST, not on {master}"
        )
    home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    command = [str(home / "bin" / "spark-class"), "org.apache.spark.deploy.SparkPipelines"]
    command += [pipelines_main.__file__, "run", "--spec", options.spec, "--remote", master]
    if options.full_refresh:
        command.append("--full-refresh-all")
    # A server has a catalogue of its own, and is not told about it.
    settings = {} if storage is None or not master.startswith("local") else catalogue_settings(storage)
    for name, value in {**settings, **options.settings}.items():
        command += ["--conf", f"{name}={value}"]
    return command


def catalogue_settings(storage: Path) -> dict[str, str]:
    """Return the settings that keep tables, and what is known of them, in the storage of a pipeline."""
    database = f"jdbc:derby:;databaseName={storage / 'catalogue'};create=true"
    return {
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": str(storage / "tables"),
        "spark.hadoop.javax.jdo.option.ConnectionURL": database,
        "spark.driver.extraJavaOptions": f"-Dderby.stream.error.file={storage / 'derby.log'}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


def _surroundings(options: PipelineOptions, storage: Path | None) -> dict[str, str]:
    told = {
        "JAVA_HOME": str(find_java()),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": os.environ.get("SPARK_LOCAL_IP", "127.0.0.1"),
        "CORDWOOD_DATA_DIR": os.path.abspath(options.data),
    }
    if options.storage is not None:
        told[pipelines_main.STORAGE] = options.storage if storage is None else storage.as_uri()
    return {**os.environ, **told}


def _started(command: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(  # noqa: S603 - Spark's own command
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=environment,
    )


def _log(storage: Path | None) -> IO[str]:
    if storage is None:
        return tempfile.NamedTemporaryFile("w+", prefix="cordwood-pipeline-", suffix=".log", delete=False)
    return (storage / "last-run.log").open("w+", encoding="utf-8")


def _events(lines: IO[str], log: IO[str]) -> Iterator[str]:
    """Keep every line, and yield what the pipeline says of itself."""
    for line in lines:
        log.write(line)
        if found := _EVENT.match(line):
            yield found[1]


def _failure(log: Path) -> JobFailed:
    text = log.read_text(encoding="utf-8", errors="replace")
    error = explained(text)
    if not str(error).startswith("Spark: "):
        return error
    reasons = _FAILED.findall(text) or _ENDED.findall(text)
    reason = reasons[-1].strip().rstrip(".") if reasons else "it gave no reason"
    return JobFailed(f"Spark: {reason}; its log is {log}")
