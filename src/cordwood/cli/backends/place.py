"""The target of a command: ``--data`` or ``--bootstrap``, and how it is opened."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cordwood.config import load_broker_config
from cordwood.errors import CordwoodError, DirectoryLocked, DirectoryRefused, NotADataDirectory

if TYPE_CHECKING:
    from cordwood.cli.backends.backend import Backend

#: How long to wait for another command that holds the directory: commands are short.
LOCKED_SECONDS = 2.0
_TIMEOUT_SECONDS = 10.0
_WHERE_TO_GIVE = "give a data directory with --data or in CORDWOOD_DATA_DIR"
Function = TypeVar("Function", bound=Callable[..., Any])
Result = TypeVar("Result")


def data_path(data: str | None) -> str:
    """Return the path of the data directory: *data*, ``CORDWOOD_DATA_DIR``, or ``./data``.

    Raises:
        DirectoryRefused: If it is not on a mounted file system.
    """
    # Help and completion load this module and need no storage.
    from cordwood.storage.meta import local_path

    return local_path(data or load_broker_config()[0].data_dir)


def check_there(path: str) -> None:
    """Check that a directory exists.

    Raises:
        DirectoryRefused: If it does not; with advice.
    """
    if not os.path.exists(path):
        raise DirectoryRefused(
            f"there is no directory {path}; {_WHERE_TO_GIVE}, or create one with cordwood topic create"
        )


@contextlib.contextmanager
def refusing(path: str) -> Iterator[None]:
    """Add advice to the error for a directory that is not a data directory."""
    try:
        yield
    except NotADataDirectory as error:
        raise DirectoryRefused(f"{path} is not a data directory; {_WHERE_TO_GIVE}") from error


@contextlib.contextmanager
def without_server(otherwise: str) -> Iterator[None]:
    """Replace the advice for a directory that a server holds, if the command cannot use that server.

    Raises:
        CordwoodError: Ends with the advice *otherwise*.
    """
    try:
        yield
    except DirectoryLocked as error:
        if error.address is None:
            raise
        raise CordwoodError(f"{error}; {otherwise}") from error


def when_free(run: Callable[[], Result], otherwise: str) -> Result:
    """Return the result of *run*, which opens a directory; wait a short time for another command to end.

    Raises:
        CordwoodError: If a server holds the directory; ends with the advice *otherwise*.
    """
    from cordwood.embedded import open_when_free

    with without_server(otherwise):
        return open_when_free(run, LOCKED_SECONDS)


def log_bytes(path: str) -> int:
    """Return the size of all readable segments of a data directory, in bytes."""
    total = 0
    for directory, _, names in os.walk(os.path.join(path, "topics")):
        for name in names:
            # A writer may remove a file concurrently.
            with contextlib.suppress(OSError):
                if name.endswith(".log"):
                    total += os.path.getsize(os.path.join(directory, name))
    return total


@dataclass(frozen=True)
class CommandTarget:
    """The values of the options. Opening it imports only the modules of its backend."""

    data: str | None = None
    bootstrap: str | None = None
    timeout: float = _TIMEOUT_SECONDS
    client: Mapping[str, str] = field(default_factory=dict)

    @contextlib.contextmanager
    def reading(self) -> Iterator[Backend]:
        """Open the target for reading: a directory without its lock, beside its writer."""
        with contextlib.closing(self._to_read()) as backend:
            yield backend

    @contextlib.contextmanager
    def writing(self, *, create: bool = False) -> Iterator[Backend]:
        """Open the target for writing: a directory as its writer, or through the server that holds it.

        Raises:
            DirectoryLocked: If another process that is not a server holds it; names that process.
        """
        with contextlib.closing(self._to_write(create)) as backend:
            yield backend

    def _by_address(self, address: str) -> Backend:
        from cordwood.cli.backends.broker import BrokerBackend

        return BrokerBackend(address, self.client, self.timeout)

    def _to_read(self) -> Backend:
        if self.bootstrap is not None:
            return self._by_address(self.bootstrap)
        return self._on_files(read_only=True, create=False)

    def _to_write(self, create: bool) -> Backend:
        if self.bootstrap is not None:
            return self._by_address(self.bootstrap)
        from cordwood.embedded import open_when_free

        try:
            return open_when_free(lambda: self._on_files(read_only=False, create=create), LOCKED_SECONDS)
        except DirectoryLocked as error:
            if error.address is None:
                raise
            return self._by_address(error.address)

    def _on_files(self, *, read_only: bool, create: bool) -> Backend:
        import cordwood
        from cordwood.cli.backends.files import FilesBackend

        path = data_path(self.data)
        if not create:
            check_there(path)
        with refusing(path):
            return FilesBackend(cordwood.open(path, read_only=read_only, create=create))


def pairs(what: str) -> Callable[[click.Context, click.Parameter, Sequence[str]], dict[str, str]]:
    """Return a click callback that splits ``KEY=VALUE`` texts; *what* describes the expected form."""

    def split(context: click.Context, parameter: click.Parameter, texts: Sequence[str]) -> dict[str, str]:
        found = {}
        for text in texts:
            name, equals, value = text.partition("=")
            if not equals or not name:
                raise click.BadParameter(f"{text}: expected {what}.")
            found[name.strip()] = value
        return found

    return split


def data_option(command: Function) -> Function:
    """Add ``--data`` alone, for commands that work on files only."""
    return click.option("--data", metavar="DIR", help="The data directory [CORDWOOD_DATA_DIR, then ./data].")(
        command
    )


def place_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of the target, and pass them to the command as ``place``."""

    @functools.wraps(command)
    def placed(
        *arguments: Any, data: str | None, bootstrap: str | None, timeout: float, client: Any, **options: Any
    ) -> Any:
        if data is not None and bootstrap is not None:
            raise click.UsageError("give --data or --bootstrap, not both.")
        return command(*arguments, place=CommandTarget(data, bootstrap, timeout, client), **options)

    decorators = [
        data_option,
        click.option("--bootstrap", metavar="HOST:PORT", help="A broker, Cordwood or Kafka."),
        click.option(
            "--timeout",
            metavar="SECONDS",
            type=click.FloatRange(0, min_open=True),
            default=_TIMEOUT_SECONDS,
            show_default=True,
            help="The longest time to wait for an answer of a broker.",
        ),
        click.option(
            "-X",
            "client",
            metavar="KEY=VALUE",
            multiple=True,
            callback=pairs("KEY=VALUE, a setting of librdkafka"),
            help="A setting of the Kafka client, such as security.protocol=SSL.",
        ),
    ]
    for decorator in reversed(decorators):
        placed = decorator(placed)
    return placed


def json_option(command: Function) -> Function:
    """Add ``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")(command)
