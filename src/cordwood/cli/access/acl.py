"""``cordwood acl``: the ACLs of a broker or a data directory."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Any

import click

from cordwood.cli.access.options import (
    org_option,
    patterns_of,
    resource_options,
    rule_options,
    rules_by_pattern,
    word_of,
)
from cordwood.cli.backends import CommandTarget, json_option, place_options
from cordwood.cli.output import print_json, print_table
from cordwood.cli.suggesting import SuggestingGroup
from cordwood.security import AclBinding, AclFilter, acl_fault
from cordwood.wording import counted

_MISSPELT = ("user", "USER", "Users", "users")
_HEADINGS = ("permission", "principal", "host", "operation", "resource", "pattern", "name")


@click.group(cls=SuggestingGroup)
def acl() -> None:
    """Add, list and remove ACLs, which say who may do what.

    The options are those of Kafka's kafka-acls. A broker applies ACLs if authorizer.class.name is set.

    Example: cordwood acl add --allow-principal User:alice --operation Read --topic orders --group billing
    """


@acl.command()
@rule_options
@resource_options(("literal", "prefixed"))
@org_option
@place_options
def add(org: int, place: CommandTarget, **options: Any) -> None:
    """Add ACLs: each principal, host and operation on each resource. Those that exist stay.

    A data directory is created if it does not exist.

    Example: cordwood acl add --allow-principal User:alice --producer --topic orders
    """
    rules = rules_by_pattern(**options)
    if not all(rules.values()):
        raise click.UsageError("say whom: give --allow-principal or --deny-principal.")
    acls = [pattern.acl(rule) for pattern, each in rules.items() for rule in dict.fromkeys(each)]
    for each in acls:
        if each.principal.partition(":")[0] in _MISSPELT:
            # A denial that names nobody would deny nothing.
            raise click.UsageError(f"no client is called {each.principal}: expected User:… with a capital.")
        fault = acl_fault(each)
        if fault is not None:
            raise click.UsageError(f"{fault}.")
    with place.writing(create=True) as backend:
        backend.create_acls(acls, org)
    click.echo(f"added {counted(len(acls), 'ACL')}")
    _print(acls)


@acl.command(name="list")
@resource_options(("literal", "prefixed", "any", "match"))
@click.option(
    "--principal", "principals", metavar="KIND:NAME", multiple=True, help="Only the ACLs of this principal."
)
@org_option
@json_option
@place_options
def list_(
    principals: tuple[str, ...], org: int, as_json: bool, place: CommandTarget, **resources: Any
) -> None:
    """List the ACLs, all of them or those of some resources.

    Example: cordwood acl list --topic orders --resource-pattern-type match
    """
    wanted = [pattern.filter() for pattern in patterns_of(**resources)] or [AclFilter()]
    wanted = [each._replace(principal=name) for each in wanted for name in principals or (None,)]
    with place.reading() as backend:
        found = backend.acls(wanted, org)
    if as_json:
        print_json([_as_json(each) for each in found])
    else:
        _print(found)


@acl.command()
@rule_options
@resource_options(("literal", "prefixed", "any", "match"))
@click.option("--dry-run", is_flag=True, help="Print what would be removed, and remove nothing.")
@click.option("--force", is_flag=True, help="Accepted as by kafka-acls: nothing is asked in any case.")
@org_option
@place_options
def remove(dry_run: bool, force: bool, org: int, place: CommandTarget, **options: Any) -> None:
    """Remove ACLs of resources: those of principals, or without one all of them.

    Example: cordwood acl remove --topic orders --allow-principal User:alice --operation Read --dry-run
    """
    rules_of = rules_by_pattern(**options)
    if not all(rules_of.values()) and (options["operations"] or options["producer"] or options["consumer"]):
        # kafka-acls would remove all ACLs of the resource, whatever they are about.
        raise click.UsageError("say whose: give --allow-principal or --deny-principal.")
    wanted: list[AclFilter] = []
    for pattern, rules in rules_of.items():
        wanted += [pattern.filter(rule) for rule in rules] or [pattern.filter()]
    if dry_run:
        with place.reading() as backend:
            found = backend.acls(wanted, org)
    else:
        with place.writing() as backend:
            found = backend.delete_acls(wanted, org)
    click.echo(f"{'would remove' if dry_run else 'removed'} {counted(len(found), 'ACL')}")
    if found:
        _print(found)


def _as_json(each: AclBinding) -> dict[str, str]:
    return {
        name: value.name.lower() if isinstance(value, IntEnum) else value
        for name, value in each._asdict().items()
    }


def _print(acls: Iterable[AclBinding]) -> None:
    rows = [
        (
            word_of(each.permission),
            each.principal,
            each.host,
            word_of(each.operation),
            word_of(each.resource_type),
            word_of(each.pattern_type),
            each.resource_name,
        )
        for each in acls
    ]
    print_table(_HEADINGS, rows)
