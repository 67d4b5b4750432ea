"""Transactions.

The state machine of one transactional id, the coordinator of all, the check of transactional batches, and the
topic that stores the states.
"""

from cordwood.broker.transactions import state_topic
from cordwood.broker.transactions.actions import (
    ProducerIdentity,
    ProducerIdNeeded,
    Result,
    StoreTransaction,
    TransactionEffect,
    TransactionReply,
    WriteMarkers,
)
from cordwood.broker.transactions.admission import Admission
from cordwood.broker.transactions.coordinator import (
    OpenPartitions,
    TransactionCoordinator,
    TransactionLimits,
)
from cordwood.broker.transactions.state_topic import (
    NAME,
    TEXT_BYTES_MAX,
    StateRow,
    StoredTransaction,
    TransactionState,
)
from cordwood.broker.transactions.transaction import Transaction

__all__ = [
    "NAME",
    "TEXT_BYTES_MAX",
    "Admission",
    "OpenPartitions",
    "ProducerIdNeeded",
    "ProducerIdentity",
    "Result",
    "StateRow",
    "StoreTransaction",
    "StoredTransaction",
    "Transaction",
    "TransactionCoordinator",
    "TransactionEffect",
    "TransactionLimits",
    "TransactionReply",
    "TransactionState",
    "WriteMarkers",
    "state_topic",
]
