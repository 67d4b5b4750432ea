"""``cordwood serve``: the Kafka server."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

import click

from cordwood.config import load_broker_config, parse_properties
from cordwood.errors import ConfigError
from cordwood.server import LineFormatter, Listening, run_server


@click.command()
@click.option("--data", metavar="DIR", help="The data directory [CORDWOOD_DATA_DIR, then ./data].")
@click.option(
    "--listen", metavar="HOST:PORT", help="The address for clients; port 0 is any free port [localhost:9092]."
)
@click.option(
    "--metrics",
    metavar="HOST:PORT",
    help="The address of /metrics, /healthz and /readyz; port 0 is any free port [none].",
)
@click.option(
    "--config",
    "config_file",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file of settings in the format of Kafka's server.properties.",
)
@click.option("--bucket", metavar="URL", help="Ship the log to this bucket, or to a prefix in it [none].")
@click.option(
    "--standby", is_flag=True, help="Follow the log in the bucket, and serve it once its owner is gone."
)
@click.option("-X", "settings", metavar="KEY=VALUE", multiple=True, help="One setting; overrides the file.")
@click.option("--verbose", is_flag=True, help="Log why connections are closed.")
def serve(
    data: str | None,
    listen: str | None,
    metrics: str | None,
    config_file: Path | None,
    bucket: str | None,
    standby: bool,
    settings: tuple[str, ...],
    verbose: bool,
) -> None:
    """Serve a data directory to Kafka clients, until SIGTERM or Ctrl-C.

    Acknowledged means synced: a record sent with acks=all survives a power cut. By default only this machine
    can connect; see --listen and the setting listeners.

    Example: cordwood serve --data data --listen localhost:9092
    """
    properties = {} if config_file is None else parse_properties(_read(config_file))
    overrides = dict(map(_split, settings))
    if data is not None:
        overrides["log.dirs"] = data
    if listen is not None:
        overrides["listeners"] = listen
    if metrics is not None:
        overrides["cordwood.metrics.listen"] = metrics
    if bucket is not None:
        overrides["cordwood.bucket"] = bucket
    config, warnings = load_broker_config(properties, overrides)
    if standby and not config.bucket:
        raise click.UsageError("--standby follows the log in a bucket: name it with --bucket")
    for warning in warnings:
        click.echo(f"cordwood: {warning}", err=True)
    lines = logging.StreamHandler()
    lines.setFormatter(LineFormatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, handlers=[lines])
    run_server(config, _say_ready, partial(_say_following, config.bucket) if standby else None)


def _say_following(url: str, piece: int) -> None:
    click.echo(f"cordwood: standby of {url}, at piece {piece}")


def _say_ready(address: str, metrics_url: str | None, listening: Listening) -> None:
    click.echo(f"cordwood: ready on {address}")
    if any(org for _, _, org in listening):
        for name, where, org in listening:
            click.echo(f"cordwood: listener {name} on {where} serves org {org}")
    if metrics_url is not None:
        click.echo(f"cordwood: metrics at {metrics_url}")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError("", f"{path} is not text in UTF-8: {error.reason} at byte {error.start}") from None


def _split(setting: str) -> tuple[str, str]:
    name, equals, value = setting.partition("=")
    if not equals:
        raise ConfigError(name, f"-X {setting}: expected KEY=VALUE")
    return name.strip(), value
