"""``cordwood pipeline``: jobs on Spark. Several jobs on one line share a session and their common options."""

from __future__ import annotations

import importlib

import click

from cordwood.cli.suggesting import SuggestingGroup

# Each job: the module and function of its command, and its line in the overview.
_JOBS: dict[str, tuple[str, str]] = {
    "compact": ("cordwood.cli.pipeline.compact:compact", "Compact a topic with any number of keys."),
    "convert": ("cordwood.cli.pipeline.convert:convert", "Copy a topic to one with other settings."),
    "export": ("cordwood.cli.pipeline.export:export", "Write topics as Parquet files, incrementally."),
    "stats": ("cordwood.cli.pipeline.stats:stats", "Show sizes, rates, key skew and times."),
    "ingest": ("cordwood.cli.pipeline.ingest:ingest", "Publish files or a query to a topic."),
    "materialize": (
        "cordwood.cli.pipeline.materialize:materialize",
        "Store the latest of each key, or windows.",
    ),
    "reindex": ("cordwood.cli.pipeline.reindex:reindex", "Rebuild the indexes of a data directory."),
    "run": ("cordwood.cli.pipeline.run:run", "Run a declarative pipeline."),
    "verify": ("cordwood.cli.pipeline.verify:verify", "Check every byte of a data directory."),
}


class _Jobs(SuggestingGroup):
    """Finds jobs by name, importing each when it runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_JOBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _JOBS:
            return None
        module, _, attribute = _JOBS[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Jobs"):
            formatter.write_dl([(name, _JOBS[name][1]) for name in self.list_commands(ctx)])


@click.group(cls=_Jobs, chain=True)
def pipeline() -> None:
    """Run jobs of the data pipeline on Spark, one or several after each other in one session.

    --data, --bootstrap, --master and --json, given to one job, apply to the jobs after it on the line. A job
    that fails, or whose check fails, ends the line.

    Example: cordwood pipeline verify --data data export -t orders --to exported stats
    """
