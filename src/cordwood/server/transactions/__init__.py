"""Transactions on the event loop, and as the clients of one org see them."""

from cordwood.server.transactions.serving import Transactions
from cordwood.server.transactions.tenants import TenantTransactions

__all__ = ["TenantTransactions", "Transactions"]
