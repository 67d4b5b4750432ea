"""The options of ``cordwood acl``, as Kafka's kafka-acls has them, and the ACLs that they stand for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import click

from cordwood.cli.backends import complete_group, complete_topic
from cordwood.security import (
    CLUSTER_NAME,
    OPERATIONS,
    WILDCARD,
    AclBinding,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from cordwood.tenancy import DEFAULT_ORG, parse_org


class ClientRole(NamedTuple):
    """What ``--producer`` or ``--consumer`` allows on each type of resource."""

    option: str
    operations: dict[ResourceType, tuple[Operation, ...]]


_PRODUCER = ClientRole(
    "--producer",
    {
        ResourceType.TOPIC: (Operation.WRITE, Operation.DESCRIBE, Operation.CREATE),
        ResourceType.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE),
    },
)
_CONSUMER = ClientRole(
    "--consumer",
    {
        ResourceType.TOPIC: (Operation.READ, Operation.DESCRIBE),
        ResourceType.GROUP: (Operation.READ,),
    },
)


class RuleOption(NamedTuple):
    """What the options say about a resource: an ACL without its pattern."""

    principal: str
    host: str
    operation: Operation
    permission: Permission


class ResourceOption(NamedTuple):
    """A resource, or a filter for resources, as the options name it."""

    resource_type: ResourceType
    name: str
    pattern_type: PatternType

    def acl(self, rule: RuleOption) -> AclBinding:
        """Return the ACL that *rule* is on this resource."""
        principal, host, operation, permission = rule
        return AclBinding(
            self.resource_type, self.name, self.pattern_type, principal, host, operation, permission
        )

    def filter(self, rule: RuleOption | None = None) -> AclFilter:
        """Return the filter for the ACLs on this resource: for that of *rule*, or for all."""
        if rule is None:
            return AclFilter(self.resource_type, self.name, self.pattern_type)
        return AclFilter(*self.acl(rule))


def _operations(
    context: click.Context, parameter: click.Parameter, texts: Sequence[str]
) -> tuple[Operation, ...]:
    """Return the operations that *texts* name, such as ``DescribeConfigs``, in any case."""
    named = {each.name.replace("_", ""): each for each in list(Operation)[Operation.ALL :]}
    found = []
    for text in texts:
        operation = named.get(text.replace("_", "").replace("-", "").upper())
        if operation is None:
            known = ", ".join(map(word_of, named.values()))
            raise click.BadParameter(f"{text!r} is no operation: expected one of {known}.")
        found.append(operation)
    return tuple(found)


def _org(context: click.Context, parameter: click.Parameter, text: str) -> int:
    """Return the number of the org that *text* names."""
    try:
        return parse_org(text)
    except ValueError as error:
        raise click.BadParameter(f"{error}.") from None


def word_of(member: Operation | ResourceType | PatternType | Permission) -> str:
    """Return the name of a member as Kafka's tools write it: DESCRIBE_CONFIGS is DescribeConfigs."""
    return "".join(part.capitalize() for part in member.name.split("_"))


def _decorated(options: Sequence[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


org_option = click.option(
    "--org",
    metavar="N",
    callback=_org,
    default=str(DEFAULT_ORG),
    help="The org whose ACLs these are, in a data directory. A broker has those of its listener's org.",
)


def resource_options(types: Sequence[str]) -> Callable[[Any], Any]:
    """Return a decorator that adds the options that name resources."""
    return _decorated(
        [
            click.option(
                "--topic",
                "topics",
                metavar="NAME",
                multiple=True,
                shell_complete=complete_topic,
                help="A topic; * means every topic.",
            ),
            click.option(
                "--group",
                "groups",
                metavar="ID",
                multiple=True,
                shell_complete=complete_group,
                help="A consumer group; * means every group.",
            ),
            click.option(
                "--transactional-id",
                "transactional_ids",
                metavar="ID",
                multiple=True,
                help="A transactional id; * means every one.",
            ),
            click.option("--cluster", is_flag=True, help="The cluster."),
            click.option(
                "--resource-pattern-type",
                "pattern",
                type=click.Choice(types, case_sensitive=False),
                default="literal",
                show_default=True,
                help=_PATTERN_HELP["match" in types],
            ),
        ]
    )


_PATTERN_HELP = {
    False: "Whether the names are those of resources, or prefixes of such names.",
    True: "Which ACLs: those of exactly these names, or prefixes; any of both; or, with match, all that "
    "apply to these resources.",
}
rule_options = _decorated(
    [
        click.option(
            "--allow-principal",
            "allowed",
            metavar="KIND:NAME",
            multiple=True,
            help="Who is allowed, such as User:alice; User:* is everyone.",
        ),
        click.option(
            "--deny-principal",
            "denied",
            metavar="KIND:NAME",
            multiple=True,
            help="Who is denied. A denial overrides everything that is allowed.",
        ),
        click.option(
            "--allow-host",
            "allowed_hosts",
            metavar="ADDRESS",
            multiple=True,
            help="An address from which it is allowed; without it from everywhere.",
        ),
        click.option(
            "--deny-host",
            "denied_hosts",
            metavar="ADDRESS",
            multiple=True,
            help="An address from which it is denied; without it from everywhere.",
        ),
        click.option(
            "--operation",
            "operations",
            metavar="NAME",
            callback=_operations,
            multiple=True,
            help="An operation, such as Read or DescribeConfigs; without it All.",
        ),
        click.option(
            "--producer",
            is_flag=True,
            help="What a producer needs: Write, Describe and Create on topics, Write and Describe on "
            "transactional ids.",
        ),
        click.option(
            "--consumer",
            is_flag=True,
            help="What a consumer needs: Read and Describe on topics, Read on groups.",
        ),
        click.option(
            "--idempotent", is_flag=True, help="With --producer: also IdempotentWrite on the cluster."
        ),
    ]
)


def patterns_of(
    topics: Iterable[str],
    groups: Iterable[str],
    transactional_ids: Iterable[str],
    cluster: bool,
    pattern: str,
) -> list[ResourceOption]:
    """Return the resources that the options name."""
    kind = PatternType[pattern.upper()]
    found = [ResourceOption(ResourceType.TOPIC, name, kind) for name in topics]
    found += [ResourceOption(ResourceType.GROUP, name, kind) for name in groups]
    found += [ResourceOption(ResourceType.TRANSACTIONAL_ID, name, kind) for name in transactional_ids]
    if cluster:
        found.append(ResourceOption(ResourceType.CLUSTER, CLUSTER_NAME, PatternType.LITERAL))
    return found


def rules_by_pattern(
    *, producer: bool, consumer: bool, idempotent: bool, operations: Sequence[Operation], **options: Any
) -> dict[ResourceOption, list[RuleOption]]:
    """Return the rules for each resource that the options name; none for a resource if nobody is named."""
    people = {name: options.pop(name) for name in ("allowed", "denied", "allowed_hosts", "denied_hosts")}
    patterns = patterns_of(**options)
    if not patterns:
        raise click.UsageError("say on what: give --topic, --group, --transactional-id or --cluster.")
    roles = [role for role, given in ((_PRODUCER, producer), (_CONSUMER, consumer)) if given]
    if idempotent and not producer:
        raise click.UsageError("--idempotent is for --producer.")
    if not roles:
        for pattern in patterns:
            _check_operations(pattern.resource_type, operations)
        return {pattern: _rules(operations or (Operation.ALL,), **people) for pattern in patterns}
    if operations or people["denied"] or people["denied_hosts"]:
        raise click.UsageError(f"{roles[0].option} allows what it says: give only --allow-principal with it.")
    found: dict[ResourceOption, list[RuleOption]] = {}
    for role in roles:
        _check_role(role, patterns)
        for pattern in patterns:
            if pattern.resource_type in role.operations:
                needed = _rules(role.operations[pattern.resource_type], **people)
                found.setdefault(pattern, []).extend(needed)
    if idempotent:
        on_cluster = ResourceOption(ResourceType.CLUSTER, CLUSTER_NAME, PatternType.LITERAL)
        found[on_cluster] = _rules((Operation.IDEMPOTENT_WRITE,), **people)
    unused = [pattern for pattern in patterns if pattern not in found]
    if unused:
        named = " and ".join(role.option for role in roles)
        raise click.UsageError(f"{named} says nothing about a {word_of(unused[0].resource_type)}.")
    return found


def _check_role(role: ClientRole, patterns: Sequence[ResourceOption]) -> None:
    types = {pattern.resource_type for pattern in patterns}
    if ResourceType.TOPIC not in types:
        raise click.UsageError(f"{role.option} needs a --topic.")
    if role is _CONSUMER and ResourceType.GROUP not in types:
        raise click.UsageError("--consumer needs a --group.")


def _check_operations(kind: ResourceType, operations: Sequence[Operation]) -> None:
    for operation in operations:
        if operation != Operation.ALL and operation not in OPERATIONS[kind]:
            known = ", ".join(word_of(each) for each in (Operation.ALL, *sorted(OPERATIONS[kind])))
            raise click.UsageError(
                f"a {word_of(kind)} has no operation {word_of(operation)}: it has {known}."
            )


def _rules(
    operations: Sequence[Operation],
    allowed: Sequence[str],
    denied: Sequence[str],
    allowed_hosts: Sequence[str],
    denied_hosts: Sequence[str],
) -> list[RuleOption]:
    if (allowed_hosts and not allowed) or (denied_hosts and not denied):
        missing = "--deny-principal" if denied_hosts and not denied else "--allow-principal"
        raise click.UsageError(f"say who at this host: give {missing}.")
    people = (
        (Permission.ALLOW, allowed, allowed_hosts or (WILDCARD,)),
        (Permission.DENY, denied, denied_hosts or (WILDCARD,)),
    )
    return [
        RuleOption(principal.strip(), host.strip(), operation, permission)
        for permission, principals, hosts in people
        for principal in principals
        for host in hosts
        for operation in operations
    ]
