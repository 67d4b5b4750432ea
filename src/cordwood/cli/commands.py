"""The commands by name, and the way their errors are reported.

A command's module is imported when the command runs, so that ``cordwood --help`` costs none of them.
"""

from __future__ import annotations

import importlib
import os
import sys
from enum import IntEnum
from typing import NoReturn

import click

from cordwood.cli import INTERRUPTED, report_interrupt
from cordwood.cli.output import sentence
from cordwood.cli.suggesting import SuggestingGroup
from cordwood.errors import (
    BucketDamaged,
    CordwoodError,
    CorruptRange,
    DirectoryLocked,
    FrameError,
    JobFailed,
    ListenFailed,
    MetadataDamaged,
    OffsetOutOfRange,
    UnknownTopic,
)

# Each command: its module and function, and its line in the overview.
_COMMANDS = {
    "acl": ("cordwood.cli.access.acl:acl", "Add, list and remove ACLs: who may do what."),
    "audit": ("cordwood.cli.operations.audit:audit", "Read the audit log of a broker."),
    "backup": ("cordwood.cli.files.backup:backup", "Back up a data directory, beside its writer."),
    "bucket": ("cordwood.cli.operations.bucket:bucket", "Look at a log in object storage."),
    "checkpoint": (
        "cordwood.cli.evidence.checkpoint:checkpoint",
        "Sign the content of a log, and check it against signatures.",
    ),
    "completion": ("cordwood.cli.completion:completion", "Print the completion script of a shell."),
    "consume": ("cordwood.cli.records.consume:consume", "Print the records of a topic."),
    "doctor": ("cordwood.cli.operations.doctor:doctor", "Explain a data directory and this installation."),
    "export": ("cordwood.cli.files.export:export", "Write a topic in the layout of another system."),
    "group": ("cordwood.cli.operations.group:group", "List, describe, reset and delete consumer groups."),
    "identity": ("cordwood.cli.files.identity:identity", "Show or change whose a data directory is."),
    "import": ("cordwood.cli.files.import_:import_", "Create a topic from another system's directory."),
    "maintain": ("cordwood.cli.files.maintain:maintain", "Run one pass of retention and compaction."),
    "mirror": ("cordwood.cli.files.mirror:mirror", "Copy topics of a Kafka cluster, and keep up with it."),
    "pipeline": ("cordwood.cli.pipeline:pipeline", "Run jobs of the data pipeline on Spark."),
    "produce": ("cordwood.cli.records.produce:produce", "Append lines from standard input to a topic."),
    "prove": ("cordwood.cli.evidence.prove:prove", "Prove that a record is in the log."),
    "reindex": ("cordwood.cli.files.reindex:reindex", "Rebuild the indexes of a data directory."),
    "restore": ("cordwood.cli.files.restore:restore", "Create a data directory from a backup or a bucket."),
    "segment": ("cordwood.cli.files.segment:segment", "Print the content of a segment file."),
    "serve": ("cordwood.cli.operations.serve:serve", "Serve a data directory to Kafka clients."),
    "top": ("cordwood.cli.operations.top:top", "Show rates, sizes and lag of topics, live."),
    "topic": ("cordwood.cli.operations.topic:topic", "Create, list, describe, alter and delete topics."),
    "transaction": (
        "cordwood.cli.operations.transaction:transaction",
        "List, describe and abort transactions.",
    ),
    "user": ("cordwood.cli.access.user:user", "Add, list and remove users with passwords."),
    "verify": ("cordwood.cli.files.verify:verify", "Check every byte of a data directory."),
    "verify-proof": (
        "cordwood.cli.evidence.verify_proof:verify_proof",
        "Check a proof with only a key.",
    ),
}


class ExitCode(IntEnum):
    """The exit status of a command."""

    OK = 0
    ERROR = 1
    USAGE = 2
    CHECK_FAILED = 3
    CORRUPTION = 4


class _Corruption(click.ClickException):
    """Ends the command with the exit status of corruption."""

    exit_code = ExitCode.CORRUPTION


class _Commands(SuggestingGroup):
    """Finds commands by name and reports exceptions of the library in one sentence."""

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
            try:
                result = super().invoke(ctx)
                sys.stdout.flush()
            finally:
                # Here, so that Ctrl-C and errors while a session is closed are reported as well.
                ctx.close()
            return result
        except KeyboardInterrupt:
            report_interrupt()
            raise SystemExit(INTERRUPTED) from None
        except click.Abort as error:
            # A question of click's that was answered with Ctrl-C.
            if not isinstance(error.__context__, KeyboardInterrupt):
                raise
            report_interrupt()
            raise SystemExit(INTERRUPTED) from None
        except BrokenPipeError:
            _end_quietly()
        except (CordwoodError, OSError) as error:
            raise _reported(error) from error


def _end_quietly() -> NoReturn:
    """End because the reader of our output has gone, as with ``| head``."""
    # The interpreter flushes again at exit and would report an error.
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    raise SystemExit(ExitCode.OK)


def _reported(error: CordwoodError | OSError) -> click.ClickException:
    """Return *error* as one sentence with advice, and its exit status."""
    text = sentence(str(error))
    match error:
        case CorruptRange():
            text += f" (with -o {error.resume_offset}); cordwood verify reports all damage"
            return _Corruption(text)
        case BucketDamaged():
            return _Corruption(text)
        case MetadataDamaged() | FrameError() | JobFailed(corruption=True):
            return _Corruption(f"{text}; cordwood verify reports all damage")
        case OffsetOutOfRange():
            text += " any more: the log changed during the command; start again, as with -o beginning"
        case UnknownTopic() if error.missing is not None and error.suggestion is None:
            text += "; cordwood topic list shows the existing topics"
        case DirectoryLocked() if error.address is not None:
            text += f"; use that process with --bootstrap {error.address}, or stop it first"
        case DirectoryLocked():
            text += "; wait until it ends, or stop it"
        case ListenFailed():
            text += "; choose another with --listen (port 0 means any free port)"
    return click.ClickException(text)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="cordwood", prog_name="cordwood")
def main() -> None:
    """Run Cordwood, a durable, segmented commit log.

    Exit status: 0 ok, 1 error, 2 usage, 3 a check failed, 4 corruption, 130 Ctrl-C.

    Example: echo hello | cordwood produce -t greetings
    """
