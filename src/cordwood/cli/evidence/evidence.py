"""Shared by the commands about checkpoints and proofs: options, files and the exit status of a refusal."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click

from cordwood.cli import ExitCode
from cordwood.cli.backends import check_there, data_path, refusing
from cordwood.errors import EvidenceRefused
from cordwood.integrity import VerifierKey

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
    """Write what is to be taken elsewhere; a file that is made is for its owner only."""
    write_private(path, text.encode())


def write_private(path: str, data: bytes) -> None:
    """Write a file; one that is made is for its owner only, since evidence may hold records."""
    with open(path, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(data)


@contextlib.contextmanager
def checked_directory(data: str | None) -> Iterator[str]:
    """Yield the path of the data directory that is meant, and say what to do if it is not one."""
    path = os.path.abspath(data_path(data))
    check_there(path)
    with refusing(path):
        yield path
