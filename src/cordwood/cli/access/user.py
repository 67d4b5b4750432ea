"""``cordwood user``: the users of a broker or a data directory, who authenticate with a password."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import IO

import click

from cordwood.cli.backends import CommandTarget, json_option, place_options
from cordwood.cli.output import print_json, print_table
from cordwood.cli.suggesting import SuggestingGroup
from cordwood.errors import CordwoodError
from cordwood.security import ITERATIONS_MAX, ITERATIONS_MIN, ScramMechanism

_PASSWORD_BYTES_MAX = 1024


def _mechanisms(
    context: click.Context, parameter: click.Parameter, titles: Sequence[str]
) -> list[ScramMechanism]:
    return [ScramMechanism.titled(title.upper()) for title in dict.fromkeys(titles)] or list(ScramMechanism)


_mechanism_option = click.option(
    "--mechanism",
    "mechanisms",
    type=click.Choice([each.title for each in ScramMechanism], case_sensitive=False),
    multiple=True,
    callback=_mechanisms,
    help="A mechanism; without it both. A user of either can also authenticate by PLAIN.",
)


@click.group(cls=SuggestingGroup)
def user() -> None:
    """Add, list and remove users, who authenticate with a password.

    Example: cordwood user add alice
    """


@user.command()
@click.argument("name")
@_mechanism_option
@click.option(
    "--iterations",
    metavar="N",
    type=click.IntRange(ITERATIONS_MIN, ITERATIONS_MAX),
    default=ITERATIONS_MIN,
    show_default=True,
    help="How often the password is hashed.",
)
@click.option(
    "--password-file",
    metavar="FILE",
    type=click.File("rb"),
    help="Read the password from the first line of a file, - for standard input, instead of asking.",
)
@place_options
def add(
    name: str,
    mechanisms: Sequence[ScramMechanism],
    iterations: int,
    password_file: IO[bytes] | None,
    place: CommandTarget,
) -> None:
    """Add a user, or give one another password. The password is asked for, and only its hash is stored.

    A data directory is created if it does not exist.

    Example: cordwood user add alice --password-file alice.password
    """
    password = _asked() if password_file is None else _read(password_file)
    if not len(name) >= 1 or "\0" in name:
        raise click.UsageError("the name of a user is a text without null characters.")
    with place.writing(create=True) as backend:
        backend.set_user(name, password, mechanisms, iterations)
    click.echo(f"added user {name} for {_titles(mechanisms)}")


def _asked() -> str:
    if not sys.stdin.isatty():
        # A password in the arguments would be in the list of processes and in the history of the shell.
        raise click.UsageError("there is nobody to ask for the password: give --password-file.")
    answer: str = click.prompt("Password", hide_input=True, confirmation_prompt=True)
    return _checked(answer.encode())


def _read(file: IO[bytes]) -> str:
    return _checked(file.readline(_PASSWORD_BYTES_MAX + 3).rstrip(b"\r\n"))


def _checked(password: bytes) -> str:
    """Return *password* as text. Raises CordwoodError for one that no client can send."""
    if not 1 <= len(password) <= _PASSWORD_BYTES_MAX or b"\0" in password:
        raise CordwoodError(f"a password has 1 to {_PASSWORD_BYTES_MAX} bytes, none of them null")
    try:
        return password.decode()
    except UnicodeDecodeError:
        raise CordwoodError("a password is text in UTF-8") from None


@user.command(name="list")
@json_option
@place_options
def list_(as_json: bool, place: CommandTarget) -> None:
    """List the users with their mechanisms and iterations.

    Example: cordwood user list --json
    """
    with place.reading() as backend:
        found = backend.users()
    if as_json:
        print_json(
            [
                {"user": name, "mechanism": mechanism.title, "iterations": iterations}
                for name, mechanism, iterations in found
            ]
        )
        return
    rows = [(name, mechanism.title, iterations) for name, mechanism, iterations in found]
    print_table(("user", "mechanism", "iterations"), rows)


@user.command()
@click.argument("name")
@_mechanism_option
@place_options
def remove(name: str, mechanisms: Sequence[ScramMechanism], place: CommandTarget) -> None:
    """Remove a user. Clients that are connected stay connected.

    Example: cordwood user remove alice
    """
    with place.writing() as backend:
        removed = backend.remove_user(name, mechanisms)
    click.echo(f"removed user {name} for {_titles(removed)}")


def _titles(mechanisms: Sequence[ScramMechanism]) -> str:
    return " and ".join(each.title for each in mechanisms)
