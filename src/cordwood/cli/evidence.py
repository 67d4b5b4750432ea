"""What the commands about checkpoints and proofs share: keys, partitions with chains, and refusals."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click

from cordwood.cli import ExitCode
from cordwood.cli.place import LOCKED_SECONDS, check_there, data_path, refusing
from cordwood.config import load_broker_config
from cordwood.embedded import open_when_free
from cordwood.errors import EvidenceRefused
from cordwood.integrity.note import VerifierKey
from cordwood.storage.data_directory import DataDirectory, Opening
from cordwood.storage.posix_files import PosixFiles
from cordwood.storage.read_only import ReadOnlyDirectory

Function = TypeVar("Function", bound=Callable[..., Any])


class _Refuted(click.ClickException):
    """Ends the command with the exit status of corruption: what was to be shown is not so."""

    exit_code = ExitCode.CORRUPTION


@contextlib.contextmanager
def refuting() -> Iterator[None]:
    """Turn evidence that does not hold into the end of the command."""
    try:
        yield
    except EvidenceRefused as error:
        raise _Refuted(str(error)) from error


def refuted(sentence: str) -> click.ClickException:
    """Return what to raise where what was to be shown is not so."""
    return _Refuted(sentence)


def key_option(command: Function) -> Function:
    """Add ``--key``, handed to the command as a `VerifierKey`."""
    return click.option(
        "--key",
        metavar="PUB",
        required=True,
        callback=lambda context, parameter, text: parse_key(text),
        help="The verifier key, or a file that has it; cordwood checkpoint show prints it.",
    )(command)


def parse_key(text: str) -> VerifierKey:
    """Return the key that *text* is, or the file of that name has.

    Raises:
        click.BadParameter: If that is none.
    """
    if os.path.isfile(text):
        with open(text, encoding="utf-8", errors="replace") as file:
            text = file.read(4096)
    try:
        return VerifierKey.parse(text.strip())
    except EvidenceRefused as error:
        raise click.BadParameter(f"{error}.") from None


def read_text(path: str) -> str:
    """Return a note that somebody kept. What is not UTF-8 is no note.

    Raises:
        EvidenceRefused: Says so.
    """
    with open(path, "rb") as file:
        try:
            return file.read().decode()
        except UnicodeDecodeError as error:
            raise EvidenceRefused(f"{path} is no signed note: {error}") from None


def write_text(path: str, text: str) -> None:
    """Write what is to be taken elsewhere."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        file.write(text)


@contextlib.contextmanager
def opened_to_read(data: str | None) -> Iterator[ReadOnlyDirectory]:
    """Open a data directory beside whoever writes it."""
    path = os.path.abspath(data_path(data))
    check_there(path)
    with refusing(path):
        directory = ReadOnlyDirectory(PosixFiles(), path, load_broker_config()[0])
    with contextlib.closing(directory):
        yield directory


def open_to_write(data: str | None) -> DataDirectory:
    """Open a data directory as its one writer, once a command that is soon done with it is done.

    Raises:
        DirectoryLocked: If a server holds it, or somebody else for longer.
    """
    path = os.path.abspath(data_path(data))
    check_there(path)
    opening = Opening(PosixFiles(), path, load_broker_config()[0], create=False)
    with refusing(path):
        return open_when_free(lambda: DataDirectory(opening), LOCKED_SECONDS)
