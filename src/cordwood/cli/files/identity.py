"""``cordwood identity``: whose a data directory is, and how to change that."""

from __future__ import annotations

import os

import click

from cordwood.cli.backends import check_there, data_option, data_path, refusing, when_free
from cordwood.cli.output import print_json
from cordwood.config import load_broker_config
from cordwood.disk import files_of
from cordwood.storage.directory import DataDirectory, Opening
from cordwood.storage.meta import Contents, read_catalogue
from cordwood.storage.meta import identity as stored
from cordwood.storage.offline import repair_identity

NOT_BESIDE_A_SERVER = "stop it first: an identity is not changed beside a server"


@click.command()
@data_option
@click.option(
    "--node-id",
    type=click.IntRange(0, (1 << 31) - 1),
    metavar="N",
    help="Let the directory belong to the broker with this node.id from now on.",
)
@click.option("--repair", is_flag=True, help="Write broker.id again, as the catalogue of topics has it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def identity(data: str | None, node_id: int | None, repair: bool, as_json: bool) -> None:
    """Print whose a data directory is: its uuid and the node.id of its broker; or change that.

    A directory is refused if its broker.id is that of another directory, and by a broker with another
    node.id than the one that it was first served with.

    Example: cordwood identity --data data --node-id 2
    """
    path = data_path(data)
    check_there(path)
    place, (config, _) = os.path.abspath(path), load_broker_config()
    files = files_of(place, config)
    with refusing(path):
        if repair:
            when_free(lambda: repair_identity(files, place), NOT_BESIDE_A_SERVER)
        if node_id is not None:
            opening = Opening(files, place, config, create=False)
            directory = when_free(lambda: DataDirectory(opening), NOT_BESIDE_A_SERVER)
            try:
                directory.change_node_id(node_id)
            finally:
                directory.close()
        found = stored.read_identity(files, place)
        owner = Contents(read_catalogue(files, place)[0].entries).directory
        # Refused here as by every writer, so that the identity of another directory is not shown as its own.
        stored.checked_owner(place, found, owner, None)
    node = None if owner is None else owner.node_id
    if as_json:
        print_json(
            {
                "uuid": found.uuid,
                "created_at": found.created_at,
                "node_name": found.node_name,
                "node_id": node,
            }
        )
        return
    click.echo(f"uuid        {found.uuid}")
    click.echo(f"created     {found.created_at} on {found.node_name}")
    click.echo(f"node.id     {'not known: no broker has served it' if node is None else node}")
