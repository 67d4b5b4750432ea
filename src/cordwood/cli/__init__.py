"""The command line. Every command is a few lines over the library.

A command's module is imported when the command runs, so that ``cordwood --help`` costs none of them.
"""

from __future__ import annotations

import importlib
from enum import IntEnum

import click

from cordwood.errors import CordwoodError

__all__ = ["ExitCode", "main"]

# Each command: where it is, and its line in the overview.
_COMMANDS = {
    "doctor": ("cordwood.cli.doctor:doctor", "Look over this installation."),
    "serve": ("cordwood.cli.serve:serve", "Serve a data directory to Kafka clients."),
    "verify": ("cordwood.cli.verify:verify", "Check every byte of a data directory."),
}


class ExitCode(IntEnum):
    """What a command's exit status says."""

    OK = 0
    ERROR = 1
    USAGE = 2
    CHECK_FAILED = 3
    CORRUPTION = 4


class _Commands(click.Group):
    """Finds commands by name and reports what the library raises in one sentence."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, _, attribute = _COMMANDS[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, _COMMANDS[name][1]) for name in self.list_commands(ctx)])

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except (CordwoodError, OSError) as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="cordwood", prog_name="cordwood")
def main() -> None:
    """Run Cordwood, a durable, segmented commit log.

    Exit status: 0 ok, 1 error, 2 usage, 3 a check failed, 4 corruption.
    """
