"""Request handlers: translate between protocol messages and the broker, one module per topic area."""

from cordwood.server.handlers.cluster import describe_cluster, describe_log_dirs, describe_topic_partitions
from cordwood.server.handlers.cluster_metadata import api_versions, metadata
from cordwood.server.handlers.configs import alter_configs, describe_configs, incremental_alter_configs
from cordwood.server.handlers.consumer_groups import consumer_group_describe, consumer_group_heartbeat
from cordwood.server.handlers.controller import (
    alter_partition_reassignments,
    describe_quorum,
    elect_leaders,
    list_partition_reassignments,
    update_features,
)
from cordwood.server.handlers.fetching import fetch
from cordwood.server.handlers.group_offsets import (
    offset_commit,
    offset_delete,
    offset_fetch,
    txn_offset_commit,
)
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
from cordwood.server.handlers.guards import GUARDS, Guard, refused_by_guard
from cordwood.server.handlers.offsets import list_offsets, offset_for_leader_epoch
from cordwood.server.handlers.producers import describe_producers, init_producer_id
from cordwood.server.handlers.producing import produce
from cordwood.server.handlers.security import (
    alter_client_quotas,
    alter_user_scram_credentials,
    create_acls,
    delete_acls,
    describe_acls,
    describe_client_quotas,
    describe_user_scram_credentials,
    sasl_authenticate,
    sasl_handshake,
)
from cordwood.server.handlers.topics import create_partitions, create_topics, delete_records, delete_topics
from cordwood.server.handlers.transactions import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    describe_transactions,
    end_txn,
    list_transactions,
    write_txn_markers,
)

__all__ = [
    "GUARDS",
    "Guard",
    "add_offsets_to_txn",
    "add_partitions_to_txn",
    "alter_client_quotas",
    "alter_configs",
    "alter_partition_reassignments",
    "alter_user_scram_credentials",
    "api_versions",
    "consumer_group_describe",
    "consumer_group_heartbeat",
    "create_acls",
    "create_partitions",
    "create_topics",
    "delete_acls",
    "delete_groups",
    "delete_records",
    "delete_topics",
    "describe_acls",
    "describe_client_quotas",
    "describe_cluster",
    "describe_configs",
    "describe_groups",
    "describe_log_dirs",
    "describe_producers",
    "describe_quorum",
    "describe_topic_partitions",
    "describe_transactions",
    "describe_user_scram_credentials",
    "elect_leaders",
    "end_txn",
    "fetch",
    "find_coordinator",
    "heartbeat",
    "incremental_alter_configs",
    "init_producer_id",
    "join_group",
    "leave_group",
    "list_groups",
    "list_offsets",
    "list_partition_reassignments",
    "list_transactions",
    "metadata",
    "offset_commit",
    "offset_delete",
    "offset_fetch",
    "offset_for_leader_epoch",
    "produce",
    "refused_by_guard",
    "sasl_authenticate",
    "sasl_handshake",
    "sync_group",
    "txn_offset_commit",
    "update_features",
    "write_txn_markers",
]
