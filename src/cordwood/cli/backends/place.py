"""The target of a command: ``--data`` or ``--bootstrap``, and how it is opened."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cordwood.config import load_broker_config
from cordwood.errors import CordwoodError, DirectoryLocked, DirectoryRefused, NotADataDirectory

if TYPE_CHECKING:
    from cordwood.cli.backends.backend import Backend
    from cordwood.disk import Files

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


def is_bucket(place: str | None) -> bool:
    """Return whether *place* is the URL of a log in object storage, and no path."""
    return place is not None and place.startswith(("s3://", "gs://", "az://"))


def mounted_bucket(url: str, target: str) -> tuple[str, Files, int]:
    """Return the path of the log at *url* in files that have it and *target*, and the bytes of its files.

    Raises:
        BucketError: If it cannot be read.
    """
    # Imported here: most commands need no object store.
    from cordwood.bucket import MOUNT, MountedFiles, view_bucket
    from cordwood.disk import files_of
    from cordwood.host import Host

    view = view_bucket(url, Host())
    files = MountedFiles(files_of(target, load_broker_config()[0]), view.files)
    return MOUNT, files, sum(file.size for _, file in view.tree.files())


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


def log_bytes(path: str, topics: Collection[str] | None = None) -> int:
    """Return the size of all readable segments of a data directory, in bytes, or of those of *topics*.

    These must exist. Topics in the shared log have no segments of their own.
    """
    below = os.path.join(path, "topics")
    if topics is None:
        return _segment_bytes(below)
    return sum(_segment_bytes(os.path.join(below, each)) for each in topics)


def _segment_bytes(below: str) -> int:
    total = 0
    for directory, _, names in os.walk(below):
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
    client: Mapping[str, str] = field(default_factory=dict, repr=False)
    client_config: str | None = None

    def client_settings(self) -> dict[str, str]:
        """Return the settings of the Kafka client: those of ``-X`` over those of the file.

        Raises:
            ConfigError: If the file cannot be read, or a setting is not supported.
        """
        from cordwood.kafka_client.settings import command_settings, read_client_config

        file = {} if self.client_config is None else read_client_config(self.client_config)
        found = command_settings(file, self.client)
        for name, reason in found.unused.items():
            click.echo(f"cordwood: -X {name} has no effect: {reason}", err=True)
        return found.settings

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

    def _by_address(self, address: str, advice: str = "") -> Backend:
        from cordwood.cli.backends.broker import BrokerBackend

        return BrokerBackend(address, self.client_settings(), self.timeout, advice)

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
            # The directory says where its server listens, and not how clients authenticate there.
            advice = "it holds the data directory; if it has TLS or users, give --config client.properties"
            return self._by_address(error.address, advice)

    def _on_files(self, *, read_only: bool, create: bool) -> Backend:
        import cordwood
        from cordwood.cli.backends.audited import AuditedFiles
        from cordwood.cli.backends.files import FilesBackend

        path = data_path(self.data)
        if not create:
            check_there(path)
        with refusing(path):
            log = cordwood.open(path, read_only=read_only, create=create)
            return FilesBackend(log) if read_only else AuditedFiles(log)


def pairs(what: str) -> Callable[[click.Context, click.Parameter, Sequence[str]], dict[str, str]]:
    """Return a click callback that splits ``KEY=VALUE`` texts; *what* describes the expected form."""

    def split(context: click.Context, parameter: click.Parameter, texts: Sequence[str]) -> dict[str, str]:
        found = {}
        for text in texts:
            name, equals, value = text.partition("=")
            if not equals or not name:
                # A password may be on the right of the sign.
                raise click.BadParameter(f"{name or '=…'}: expected {what}.")
            found[name.strip()] = value
        return found

    return split


def data_option(command: Function) -> Function:
    """Add ``--data`` alone, for commands that work on files only."""
    return click.option("--data", metavar="DIR", help="The data directory [CORDWOOD_DATA_DIR, then ./data].")(
        command
    )


def client_options(command: Function, *, config_taken: bool = False) -> Function:
    """Add the options of the Kafka client, ``client`` and ``client_config``.

    With *config_taken* the command has a ``--config`` of its own.
    """
    names = ("--command-config",) if config_taken else ("--config", "--command-config")
    decorators = [
        click.option(
            *names,
            "client_config",
            metavar="FILE",
            envvar="CORDWOOD_CLIENT_CONFIG",
            help="A client.properties as Kafka's tools take it [CORDWOOD_CLIENT_CONFIG].",
        ),
        click.option(
            "-X",
            "client",
            metavar="KEY=VALUE",
            multiple=True,
            callback=pairs("KEY=VALUE, a setting of librdkafka or of Java's client"),
            help="A setting of the Kafka client, such as security.protocol=SSL; overrides the file.",
        ),
    ]
    for decorator in reversed(decorators):
        command = decorator(command)
    return command


def place_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of the target, and pass them to the command as ``place``."""
    return _placed(command, config_taken=False)


def place_options_beside_config(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the same as `place_options` to a command that has a ``--config`` of its own."""
    return _placed(command, config_taken=True)


def _placed(command: Callable[..., Any], *, config_taken: bool) -> Callable[..., Any]:
    @functools.wraps(command)
    def placed(
        *arguments: Any,
        data: str | None,
        bootstrap: str | None,
        timeout: float,
        client: Mapping[str, str],
        client_config: str | None,
        **options: Any,
    ) -> Any:
        if data is not None and bootstrap is not None:
            raise click.UsageError("give --data or --bootstrap, not both.")
        place = CommandTarget(data, bootstrap, timeout, client, client_config)
        return command(*arguments, place=place, **options)

    decorators: list[Callable[[Callable[..., Any]], Callable[..., Any]]] = [
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
        functools.partial(client_options, config_taken=config_taken),
    ]
    for decorator in reversed(decorators):
        placed = decorator(placed)
    return placed


def json_option(command: Function) -> Function:
    """Add ``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")(command)
