"""Shared by the commands for checkpoints and proofs: options, files and exit status."""

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
    """Ends the command with the exit status of corruption: the evidence does not hold."""

    exit_code = ExitCode.CORRUPTION


@contextlib.contextmanager
def refuting() -> Iterator[None]:
    """End the command if evidence does not hold."""
    try:
        yield
    except EvidenceRefused as error:
        raise _Refuted(str(error)) from error


def key_option(command: Function) -> Function:
    """Add ``--key``, passed to the command as a `VerifierKey`."""
    return click.option(
        "--key",
        metavar="PUB",
        required=True,
        callback=lambda context, parameter, text: parse_key(text),
        help="The verifier key, or a file with it; cordwood checkpoint show prints it.",
    )(command)


def parse_key(text: str) -> VerifierKey:
    """Return the key in *text*, or in the file called *text*.

    Raises:
        click.BadParameter: If it is not a key.
    """
    if os.path.isfile(text):
        with open(text, encoding="utf-8", errors="replace") as file:
            text = file.read(4096)
    try:
        return VerifierKey.parse(text.strip())
    except EvidenceRefused as error:
        raise click.BadParameter(f"{error}.") from None


def read_text(path: str) -> str:
    """Return the text of a note that was stored elsewhere.

    Raises:
        EvidenceRefused: If the file is not UTF-8.
    """
    with open(path, "rb") as file:
        try:
            return file.read().decode()
        except UnicodeDecodeError as error:
            raise EvidenceRefused(f"{path} is not a signed note: {error}") from None


def write_text(path: str, text: str) -> None:
    """Write a text to a file; a new file is readable by its owner only."""
    write_private(path, text.encode())


def write_private(path: str, data: bytes) -> None:
    """Write a file; a new file is readable by its owner only, because evidence may contain records."""
    with open(path, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(data)


@contextlib.contextmanager
def checked_directory(data: str | None) -> Iterator[str]:
    """Yield the path of the data directory; an error has advice if it is not one."""
    path = os.path.abspath(data_path(data))
    check_there(path)
    with refusing(path):
        yield path
