"""Quotas of orgs and of their clients: what is used, what is left, and how long who exceeds one waits."""

from cordwood.server.quotas.clients import ClientRates
from cordwood.server.quotas.org import OrgQuotas
from cordwood.server.quotas.rate import Rate
from cordwood.server.quotas.request_time import RequestTime
from cordwood.server.quotas.stored import StoredQuotas, load_client_quotas
from cordwood.server.quotas.stored_bytes import StoredBytes

__all__ = [
    "ClientRates",
    "OrgQuotas",
    "Rate",
    "RequestTime",
    "StoredBytes",
    "StoredQuotas",
    "load_client_quotas",
]
