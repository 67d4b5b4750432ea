"""Run declarative pipelines: Spark's command, with Java, a catalogue and the data directory configured.

``spark-pipelines run`` stores its tables in a catalogue. If the catalogue was in memory, the next run does
not find them and fails, because their files exist already. So the catalogue is stored beside the checkpoints,
in the storage of the pipeline. It is set on the command line, because Spark does not read it from the
pipeline's file. Both apply to Spark 4.3.
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
from cordwood.spark.failures import explained
from cordwood.spark.sessions import pipelines_main
from cordwood.spark.sessions.java import find_java

#: Modules that Spark's command needs besides pyspark; each is checked before Java starts.
NEEDED = ("yaml", "grpc", "grpc_status", "google.rpc", "zstandard", "pandas")
_EVENT = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d: (.+)")
_FLOW = re.compile(r"Flow '?([^' ]+)'? (?:is|has) ([A-Z]+)")
#: Patterns of Spark's messages about a failed flow, and of the last lines of Python and Java.
_FAILED = re.compile(r"^Error: (.+)", re.MULTILINE)
_ENDED = re.compile(r"^(?:Exception in thread \"main\" )?[\w.]+(?:Exception|Error): \s*(.+)", re.MULTILINE)


@dataclass(frozen=True)
class PipelineOptions:
    """The options of a run. *storage* replaces that of the file; *data* is passed to the flows."""

    spec: str
    data: str
    storage: str | None = None
    master: str | None = None
    full_refresh: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PipelineReport:
    """How each flow of a run ended, and the path of Spark's output."""

    name: str
    flows: dict[str, str]
    log: str


def run_pipeline(
    options: PipelineOptions, tell: Callable[[str], None] = lambda event: None
) -> PipelineReport:
    """Run a pipeline in separate processes, calling *tell* with Spark's messages about its flows.

    Published records stay published; the next run continues from there.

    Raises:
        CordwoodError: If the file is not a pipeline's, or a requirement is missing.
        JobFailed: If the run fails: one sentence, and the path of the full output.
    """
    for name in NEEDED:
        _imported(name)
    spec = load_spec(options.spec)
    storage = options.storage or spec.get("storage")
    if not storage:
        raise CordwoodError(f"{options.spec} has no storage: give one there, or with --storage")
    local = local_path(str(storage))
    command = _command(options, local)
    if local is not None:
        local.mkdir(parents=True, exist_ok=True)
    flows: dict[str, str] = {}
    with _log(local) as log, _started(command, _surroundings(options, local)) as process:
        assert process.stdout is not None
        for event in _events(process.stdout, log):
            tell(event)
            if found := flow_state(event):
                flows.update([found])
    if process.returncode:
        raise _failure(Path(log.name))
    return PipelineReport(str(spec["name"]), flows, log.name)


def flow_state(event: str) -> tuple[str, str] | None:
    """Return the name of the flow that a message of Spark is about, and its state; None for others."""
    found = _FLOW.match(event)
    return None if found is None else (found[1].rpartition(".")[2], found[2].lower())


def load_spec(path: str) -> dict[str, Any]:
    """Return the content of a pipeline's file.

    Raises:
        CordwoodError: If it cannot be read, or is not such a file.
    """
    yaml = _imported("yaml")
    try:
        with open(path, encoding="utf-8") as file:
            found = yaml.safe_load(file)
    except OSError as error:
        raise CordwoodError(f"{path} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise CordwoodError(f"{path} is not YAML: {reason}") from None
    if not isinstance(found, dict) or "name" not in found or "libraries" not in found:
        raise CordwoodError(f"{path} is not the file of a pipeline: that has a name, a storage and libraries")
    return found


def local_path(storage: str) -> Path | None:
    """Return the directory of a storage, None if it is not on this machine's disk."""
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
    # A remote server has its own catalogue.
    settings = {} if storage is None or not master.startswith("local") else catalogue_settings(storage)
    for name, value in {**settings, **options.settings}.items():
        command += ["--conf", f"{name}={value}"]
    return command


def catalogue_settings(storage: Path) -> dict[str, str]:
    """Return the settings that store tables and their catalogue in the storage of a pipeline."""
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
    """Store every line, and yield the pipeline's own messages."""
    for line in lines:
        log.write(line)
        if found := _EVENT.match(line):
            yield found[1]


def _failure(log: Path) -> JobFailed:
    text = log.read_text(encoding="utf-8", errors="replace")
    error = explained(text)
    if not error.unexplained:
        return error
    reasons = _FAILED.findall(text) or _ENDED.findall(text)
    reason = reasons[-1].strip().rstrip(".") if reasons else "it gave no reason"
    return JobFailed(f"Spark: {reason}; its log is {log}", unexplained=True)
