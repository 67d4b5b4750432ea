"""``cordwood transaction``: the transactional ids of a broker or a data directory."""

from __future__ import annotations

import click

from cordwood.cli.backends import CommandTarget, TransactionDescription, json_option, place_options
from cordwood.cli.output import print_json, print_table, printable
from cordwood.cli.suggesting import SuggestingGroup
from cordwood.host import SystemClock


@click.group(cls=SuggestingGroup)
def transaction() -> None:
    """List, describe and abort transactions.

    On a data directory, transactions are those that were last stored.

    Example: cordwood transaction list
    """


@transaction.command(name="list")
@click.option("--open", "only_open", is_flag=True, help="Only transactions that have not ended.")
@json_option
@place_options
def list_(only_open: bool, as_json: bool, place: CommandTarget) -> None:
    """List the transactional ids, and for how long a transaction of each is open.

    Example: cordwood transaction list --open
    """
    with place.reading() as backend:
        found = [each for each in backend.transactions() if each.is_open or not only_open]
    if as_json:
        print_json(found)
        return
    rows = [(each.id, each.state, each.producer_id, each.epoch, _age(each)) for each in found]
    print_table(("transactional id", "state", "producer", "epoch", "open for"), rows)


@transaction.command()
@click.argument("name", metavar="ID")
@json_option
@place_options
def describe(name: str, as_json: bool, place: CommandTarget) -> None:
    """Show the transaction of a transactional id, and its partitions.

    Example: cordwood transaction describe payments-1
    """
    with place.reading() as backend:
        found = backend.transaction(name)
    if as_json:
        print_json(found)
        return
    open_for = f", open for {_age(found)}" if found.is_open else ""
    click.echo(f"transactional id {printable(name)}, {found.state}{open_for}")
    click.echo(f"producer {found.producer_id}, epoch {found.epoch}, timeout {found.timeout_ms} ms")
    if found.partitions:
        print_table(("topic", "partition"), sorted(found.partitions))


@transaction.command()
@click.argument("name", metavar="ID")
@click.option("--dry-run", is_flag=True, help="Print what would be aborted, and abort nothing.")
@place_options
def abort(name: str, dry_run: bool, place: CommandTarget) -> None:
    """Abort the open transaction of a transactional id. Its producer is fenced and can never commit it.

    Example: cordwood transaction abort payments-1 --dry-run
    """
    with place.reading() as backend:
        found = backend.transaction(name)
    if not found.is_open:
        click.echo(f"transactional id {printable(name)} has no open transaction: {found.state}")
        return
    if not dry_run:
        with place.writing() as backend:
            backend.abort_transaction(name, found.timeout_ms)
    verb = "would abort" if dry_run else "aborted"
    click.echo(
        f"{verb} the transaction of {printable(name)}, producer {found.producer_id} epoch {found.epoch}"
    )


def _age(found: TransactionDescription) -> str:
    """Return for how long the transaction is open, in words; empty if it is not."""
    if not found.is_open or found.started_ms < 0:
        return ""
    return f"{max(0, SystemClock().now_ms() - found.started_ms) / 1000:.1f} s"
