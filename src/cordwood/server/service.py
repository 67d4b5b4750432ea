"""Dispatch of requests to handlers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from cordwood.protocol import ApiKey
from cordwood.server.connections import Exchange
from cordwood.server.context import Context
from cordwood.server.handlers import (
    alter_configs,
    alter_partition_reassignments,
    api_versions,
    create_acls,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_topics,
    describe_acls,
    describe_client_quotas,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_quorum,
    describe_topic_partitions,
    describe_user_scram_credentials,
    elect_leaders,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    sync_group,
    update_features,
)

#: Handlers of Produce and Fetch use callbacks: these requests are too frequent for a task each.
HOT: Mapping[ApiKey, Callable[[Context, Exchange], None]] = {ApiKey.PRODUCE: produce, ApiKey.FETCH: fetch}
Handler = Callable[[Context, Exchange], Coroutine[Any, Any, object]]
"""Returns the response; see `Exchange.answer`."""


#: Handlers of all other requests.
COLD: Mapping[ApiKey, Handler] = {
    ApiKey.LIST_OFFSETS: list_offsets,
    ApiKey.METADATA: metadata,
    ApiKey.API_VERSIONS: lambda context, exchange: api_versions(HANDLERS, exchange),
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
    ApiKey.DESCRIBE_PRODUCERS: describe_producers,
    ApiKey.LIST_TRANSACTIONS: list_transactions,
    ApiKey.DESCRIBE_ACLS: describe_acls,
    ApiKey.CREATE_ACLS: create_acls,
    ApiKey.DELETE_ACLS: delete_acls,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: describe_client_quotas,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: describe_user_scram_credentials,
    ApiKey.ELECT_LEADERS: elect_leaders,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: alter_partition_reassignments,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: list_partition_reassignments,
    ApiKey.DESCRIBE_QUORUM: describe_quorum,
    ApiKey.UPDATE_FEATURES: update_features,
}


#: The APIs that are served.
HANDLERS: frozenset[ApiKey] = frozenset((*HOT, *COLD))
_LOGGER = logging.getLogger("cordwood.server")


class Service:
    """Answers every supported request, and closes the connection for any other."""

    def __init__(self, context: Context) -> None:
        self.context = context

    def handle(self, exchange: Exchange) -> None:
        """Answer the request of *exchange*, now or later."""
        api_key = exchange.request.api_key
        if api_key in HOT:
            HOT[api_key](self.context, exchange)
        elif api_key in COLD:
            task = self.context.loop.create_task(self._answer(COLD[api_key], exchange))
            # The loop itself holds only weak references to tasks.
            self.context.answering.add(task)
            task.add_done_callback(self.context.answering.discard)
        else:
            exchange.fail(f"{api_key.name} is not served")

    async def _answer(self, handler: Handler, exchange: Exchange) -> None:
        """Answer with the result of *handler*; on an unexpected exception close the connection."""
        try:
            exchange.answer(await handler(self.context, exchange))
        except Exception:
            _LOGGER.exception("a %s request failed", exchange.request.api_key.name)
            exchange.fail("the request could not be handled")
