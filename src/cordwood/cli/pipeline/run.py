"""``cordwood pipeline run``: a declarative pipeline of Spark."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict

import click

import cordwood.spark
from cordwood.cli.backends import data_path
from cordwood.cli.output import print_json, print_table, task_bar
from cordwood.cli.pipeline.line import CommandLine, job_options

_WARNING = (
    "A full refresh discards the progress of flows and rebuilds tables. Topics that the pipeline writes "
    "keep their records and get all records once more."
)


#: The states in which a flow does nothing more.
_ENDED = frozenset({"completed", "excluded", "failed", "idle", "skipped", "stopped"})


class _FileFirst(click.Command):
    """Accepts options after FILE too; click would end a job at its first argument."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and not args[0].startswith("-"):
            after = 1 + self._options_size(ctx, args[1:])
            args = [*args[1:after], args[0], *args[after:]]
        return super().parse_args(ctx, args)

    def _options_size(self, ctx: click.Context, args: list[str]) -> int:
        """Return the number of leading *args* that are options and their values."""
        taking = [
            each for each in self.get_params(ctx) if isinstance(each, click.Option) and not each.is_flag
        ]
        names = {name for each in taking for name in each.opts}
        size = 0
        while size < len(args) and args[size].startswith("-"):
            size += 2 if args[size] in names else 1
        return min(size, len(args))


@click.command(cls=_FileFirst)
@click.argument("file", metavar="FILE")
@click.option("--storage", metavar="DIR", help="The directory of checkpoints and tables; overrides FILE.")
@click.option("--full-refresh", is_flag=True, help="Start from the beginning; topics get all records again.")
@click.option("--yes", is_flag=True, help="Do not ask before a full refresh.")
@job_options()
def run(file: str, storage: str | None, full_refresh: bool, yes: bool, line: CommandLine) -> None:
    """Run a declarative pipeline, a spark-pipeline.yml, over the records since the last run.

    It runs like spark-pipelines run, in a separate process, with the catalogue of its tables in the storage.
    Its flows find the data directory in CORDWOOD_DATA_DIR. --master is local[N], or sc://HOST for a Spark
    Connect server.

    Example: cordwood pipeline run examples/pipeline/spark-pipeline.yml --storage .pipeline
    """
    cordwood.spark.has_session()
    from cordwood.spark.sessions import PipelineOptions, load_spec, run_pipeline

    load_spec(file)
    if full_refresh:
        click.echo(_WARNING, err=True)
        if not yes:
            click.confirm("Go on?", abort=True, err=True)
    options = PipelineOptions(file, data_path(line.data), storage, line.master, full_refresh)
    with _flows_shown(shown=not line.as_json) as tell:
        report = run_pipeline(options, tell)
    if line.as_json:
        print_json({"job": "run", **asdict(report)})
    else:
        print_table(("flow", "state"), sorted(report.flows.items()))


@contextlib.contextmanager
def _flows_shown(*, shown: bool) -> Iterator[Callable[[str], None]]:
    """Yield what is called with Spark's messages: they, and a bar of the flows that ended, are shown.

    On a terminal only; with a bar, if it is to be *shown*.
    """
    if not sys.stderr.isatty():
        yield lambda event: None
        return
    from cordwood.spark.sessions import flow_state

    states: dict[str, str] = {}
    with task_bar("running") if shown else contextlib.nullcontext(lambda done, total: None) as show:

        def tell(event: str) -> None:
            click.echo(event, err=True)
            found = flow_state(event)
            if found is not None:
                states.update([found])
                show(sum(state in _ENDED for state in states.values()), len(states))

        yield tell
