"""Dispatch of requests to handlers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

from cordwood.protocol import ApiKey
from cordwood.server.connections import Exchange
from cordwood.server.context import Context
from cordwood.server.handlers import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    alter_client_quotas,
    alter_configs,
    alter_partition_reassignments,
    alter_user_scram_credentials,
    api_versions,
    consumer_group_describe,
    consumer_group_heartbeat,
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
    describe_transactions,
    describe_user_scram_credentials,
    elect_leaders,
    end_txn,
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
    refused_by_guard,
    sasl_authenticate,
    sasl_handshake,
    sync_group,
    txn_offset_commit,
    update_features,
    write_txn_markers,
)
from cordwood.server.quotas import RequestTime

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
    ApiKey.CONSUMER_GROUP_HEARTBEAT: consumer_group_heartbeat,
    ApiKey.CONSUMER_GROUP_DESCRIBE: consumer_group_describe,
    ApiKey.OFFSET_COMMIT: offset_commit,
    ApiKey.TXN_OFFSET_COMMIT: txn_offset_commit,
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
    ApiKey.ADD_PARTITIONS_TO_TXN: add_partitions_to_txn,
    ApiKey.ADD_OFFSETS_TO_TXN: add_offsets_to_txn,
    ApiKey.END_TXN: end_txn,
    ApiKey.WRITE_TXN_MARKERS: write_txn_markers,
    ApiKey.DESCRIBE_TRANSACTIONS: describe_transactions,
    ApiKey.LIST_TRANSACTIONS: list_transactions,
    ApiKey.DESCRIBE_ACLS: describe_acls,
    ApiKey.CREATE_ACLS: create_acls,
    ApiKey.DELETE_ACLS: delete_acls,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: describe_client_quotas,
    ApiKey.ALTER_CLIENT_QUOTAS: alter_client_quotas,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: describe_user_scram_credentials,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: alter_user_scram_credentials,
    # On listeners with SASL, these two do not come here.
    ApiKey.SASL_HANDSHAKE: sasl_handshake,
    ApiKey.SASL_AUTHENTICATE: sasl_authenticate,
    ApiKey.ELECT_LEADERS: elect_leaders,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: alter_partition_reassignments,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: list_partition_reassignments,
    ApiKey.DESCRIBE_QUORUM: describe_quorum,
    ApiKey.UPDATE_FEATURES: update_features,
}

#: Requests of members of groups, which all ask at the same moment when a group rebalances. They keep their
#: order.
OF_MEMBERS = frozenset(
    {
        ApiKey.JOIN_GROUP,
        ApiKey.SYNC_GROUP,
        ApiKey.HEARTBEAT,
        ApiKey.LEAVE_GROUP,
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        ApiKey.OFFSET_COMMIT,
        ApiKey.OFFSET_FETCH,
    }
)

#: The APIs that are served.
HANDLERS: frozenset[ApiKey] = frozenset((*HOT, *COLD))
_LOGGER = logging.getLogger("cordwood.server")


class Service:
    """Answers every supported request, and closes the connection for any other."""

    def __init__(self, context: Context) -> None:
        self.context = context

    def handle(self, exchange: Exchange) -> None:
        """Answer the request of *exchange*, now or later."""
        if self.context.quotas.limits_time:
            time = self.context.quotas.time_of(exchange.quota_client)
            if time is not None:
                exchange.time = time
                time.run(partial(self._dispatch, exchange, time))
                return
        self._dispatch(exchange, None)

    def _dispatch(self, exchange: Exchange, time: RequestTime | None) -> None:
        api_key = exchange.request.api_key
        watch = self.context.watch
        if watch is not None:
            refusal = watch.refusal(exchange)
            if refusal is not None:
                exchange.answer(refusal)
                return
            watch.begin(exchange, authorized=self.context.authorization is not None)
        if api_key in HOT:
            HOT[api_key](self.context, exchange)
        elif api_key in COLD:
            begin = partial(self._begin, COLD[api_key], exchange, time)
            if api_key in OF_MEMBERS:
                self.context.groups.requests.run(begin)
            else:
                begin()
        else:
            exchange.fail(f"{api_key.name} is not served")

    def _begin(self, handler: Handler, exchange: Exchange, time: RequestTime | None) -> None:
        begin = partial(self._answer, handler, exchange)
        task = self.context.loop.create_task(begin() if time is None else time.run_all(begin))
        # The loop itself holds only weak references to tasks.
        self.context.answering.add(task)
        task.add_done_callback(self.context.answering.discard)

    async def _answer(self, handler: Handler, exchange: Exchange) -> None:
        """Answer with the result of *handler*; on an unexpected exception close the connection."""
        try:
            answer = refused_by_guard(self.context, exchange)
            if answer is None:
                answer = await handler(self.context, exchange)
            exchange.show(answer)
            if self.context.watch is not None:
                answer = await self.context.watch.recorded(exchange, answer)
            exchange.answer(answer)
        except Exception:
            _LOGGER.exception("a %s request failed", exchange.request.api_key.name)
            exchange.fail("the request could not be handled")
