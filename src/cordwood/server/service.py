"""Which request goes to which handler."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cordwood.protocol.apis import ApiKey
from cordwood.server.connection import Exchange
from cordwood.server.context import Context
from cordwood.server.handlers.cluster import (
    describe_cluster,
    describe_log_dirs,
    describe_topic_partitions,
)
from cordwood.server.handlers.configs import alter_configs, describe_configs, incremental_alter_configs
from cordwood.server.handlers.fetch import fetch
from cordwood.server.handlers.group_offsets import offset_commit, offset_delete, offset_fetch
from cordwood.server.handlers.groups import (
    delete_groups,
    describe_groups,
    find_coordinator,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    sync_group,
)
from cordwood.server.handlers.metadata import api_versions, metadata
from cordwood.server.handlers.offsets import list_offsets, offset_for_leader_epoch
from cordwood.server.handlers.produce import produce
from cordwood.server.handlers.producers import init_producer_id
from cordwood.server.handlers.topics import (
    create_partitions,
    create_topics,
    delete_records,
    delete_topics,
)

Handler = Callable[[Context, Exchange], None]

HANDLERS: Mapping[ApiKey, Handler] = {
    ApiKey.PRODUCE: produce,
    ApiKey.FETCH: fetch,
    ApiKey.LIST_OFFSETS: list_offsets,
    ApiKey.METADATA: metadata,
    ApiKey.API_VERSIONS: lambda context, exchange: api_versions(HANDLERS.keys(), exchange),
    ApiKey.CREATE_TOPICS: create_topics,
    ApiKey.DELETE_TOPICS: delete_topics,
    ApiKey.INIT_PRODUCER_ID: init_producer_id,
    ApiKey.FIND_COORDINATOR: find_coordinator,
    ApiKey.JOIN_GROUP: join_group,
    ApiKey.SYNC_GROUP: sync_group,
    ApiKey.HEARTBEAT: heartbeat,
    ApiKey.LEAVE_GROUP: leave_group,
    ApiKey.DESCRIBE_GROUPS: describe_groups,
    ApiKey.LIST_GROUPS: list_groups,
    ApiKey.DELETE_GROUPS: delete_groups,
    ApiKey.OFFSET_COMMIT: offset_commit,
    ApiKey.OFFSET_FETCH: offset_fetch,
    ApiKey.OFFSET_DELETE: offset_delete,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: offset_for_leader_epoch,
    ApiKey.DESCRIBE_CONFIGS: describe_configs,
    ApiKey.ALTER_CONFIGS: alter_configs,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: incremental_alter_configs,
    ApiKey.CREATE_PARTITIONS: create_partitions,
    ApiKey.DELETE_RECORDS: delete_records,
    ApiKey.DESCRIBE_CLUSTER: describe_cluster,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: describe_topic_partitions,
    ApiKey.DESCRIBE_LOG_DIRS: describe_log_dirs,
}


class Service:
    """Answers every request that is served, and closes on those that are not."""

    def __init__(self, context: Context) -> None:
        self.context = context

    def handle(self, exchange: Exchange) -> None:
        """Answer the request of *exchange*, now or later."""
        handler = HANDLERS.get(exchange.request.api_key)
        if handler is None:
            exchange.fail(f"{exchange.request.api_key.name} is not served")
        else:
            handler(self.context, exchange)
