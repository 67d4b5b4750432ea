"""State shared by the jobs of one command line: the place of the log, the Spark session, the output."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

import cordwood.spark
from cordwood.cli.backends import CommandTarget, check_there, client_options, data_path
from cordwood.cli.interrupting import holding_interrupts
from cordwood.cli.output import task_bar
from cordwood.errors import JobFailed

if TYPE_CHECKING:
    from cordwood.spark import SparkSession
    from cordwood.spark.jobs import LogPlace

_LINE = "cordwood.pipeline.line"
#: The interval at which the progress of tasks is shown on a terminal, in seconds.
_REFRESH_SECONDS = 0.2


@dataclass
class CommandLine:
    """The state of a command line while its jobs run, one after the other."""

    data: str | None = None
    bootstrap: str | None = None
    client: Mapping[str, str] = field(default_factory=dict, repr=False)
    client_config: str | None = None
    master: str | None = None
    as_json: bool = False
    log_file: str | None = None

    def path(self) -> str:
        """Return the data directory.

        Raises:
            DirectoryRefused: If it does not exist.
        """
        path = data_path(self.data)
        check_there(path)
        return path

    def place(self, *, create: bool = False) -> LogPlace:
        """Return the place of the log; with *create*, the directory need not exist yet.

        Raises:
            CordwoodError: If Spark is not installed.
            ConfigError: If the settings of the Kafka client cannot be read, or one is not supported.
            DirectoryRefused: If the directory does not exist.
        """
        cordwood.spark.has_session()
        from cordwood.spark.jobs import LogPlace

        if self.bootstrap is not None:
            target = CommandTarget(client=self.client, client_config=self.client_config)
            return LogPlace(bootstrap=self.bootstrap, client=target.client_settings())
        return LogPlace(path=data_path(self.data) if create else self.path())

    @contextlib.contextmanager
    def working(self, doing: str) -> Iterator[SparkSession]:
        """Yield the session, and show the progress of its tasks on a terminal.

        Raises:
            JobFailed: One sentence for any exception of Spark in the block.
        """
        spark = self._session()
        from cordwood.spark.failures import as_one_sentence

        try:
            with as_one_sentence(), _tasks_shown(spark, doing, shown=not self.as_json):
                yield spark
        except JobFailed as error:
            # Spark's own message often lacks the reason, which is in its log, so the error names the log.
            if self.log_file is None or not error.unexplained:
                raise
            kept, self.log_file = self.log_file, None
            raise JobFailed(f"{error}; its log is {kept}", unexplained=True) from error

    def _session(self) -> SparkSession:
        if cordwood.spark.has_session():
            return cordwood.spark.session(master=self.master)
        # A JVM whose start is cut in half would stay, and nothing would end it.
        with holding_interrupts():
            with self._quiet_jvm():
                spark = cordwood.spark.session("cordwood pipeline", master=self.master)
            click.get_current_context().find_root().call_on_close(spark.stop)
        return spark

    @contextlib.contextmanager
    def _quiet_jvm(self) -> Iterator[None]:
        """Redirect the output of a JVM that starts in the block to a file: it would hide our messages."""
        handle, self.log_file = tempfile.mkstemp(prefix="cordwood-spark-", suffix=".log")
        click.get_current_context().find_root().call_on_close(self._forget_log)
        sys.stderr.flush()
        kept = os.dup(2)
        os.dup2(handle, 2)
        os.close(handle)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)

    def _forget_log(self) -> None:
        if self.log_file is not None:
            os.unlink(self.log_file)


@contextlib.contextmanager
def _tasks_shown(spark: SparkSession, doing: str, *, shown: bool) -> Iterator[None]:
    """Show the finished and known tasks until the block ends."""
    if not shown or not sys.stderr.isatty() or not hasattr(spark, "sparkContext"):
        yield
        return
    ended = threading.Event()

    def watch() -> None:
        tracker = spark.sparkContext.statusTracker()
        tasks: dict[int, tuple[int, int]] = {}
        with task_bar(doing) as show:
            while not ended.wait(_REFRESH_SECONDS):
                for stage in tracker.getActiveStageIds():
                    info = tracker.getStageInfo(stage)
                    if info is not None:
                        tasks[stage] = (info.numCompletedTasks, info.numTasks)
                done, total = map(sum, zip(*tasks.values(), strict=True)) if tasks else (0, 0)
                show(done, total)

    watcher = threading.Thread(target=watch, name="cordwood-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def job_options(*, address: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the options that jobs share, and pass their values to the job as ``line``.

    With *address*, the job also takes ``--bootstrap`` and the options of the Kafka client.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def job(
            *arguments: Any,
            data: str | None,
            master: str | None,
            as_json: bool,
            bootstrap: str | None = None,
            client: Mapping[str, str] | None = None,
            client_config: str | None = None,
            **options: Any,
        ) -> Any:
            line = click.get_current_context().meta.setdefault(_LINE, CommandLine())
            if data is not None and bootstrap is not None:
                raise click.UsageError("give --data or --bootstrap, not both.")
            if data is not None or bootstrap is not None:
                line.data, line.bootstrap = data, bootstrap
            line.client = {**line.client, **(client or {})}
            line.client_config = client_config or line.client_config
            if not address and line.bootstrap is not None:
                raise click.UsageError("this job works on files: give --data.")
            line.master = master or line.master
            line.as_json = as_json or line.as_json
            return command(*arguments, line=line, **options)

        decorators = [
            click.option(
                "--data", metavar="DIR", help="The data directory [CORDWOOD_DATA_DIR, then ./data]."
            ),
            click.option("--master", metavar="URL", help="Spark's master [SPARK_MASTER, then local[*]]."),
            click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object."),
        ]
        if address:
            help_text = "A broker, Cordwood or Kafka, instead of a directory."
            decorators.insert(1, click.option("--bootstrap", metavar="HOST:PORT", help=help_text))
            decorators.insert(2, client_options)
        for decorator in reversed(decorators):
            job = decorator(job)
        return job

    return decorate
