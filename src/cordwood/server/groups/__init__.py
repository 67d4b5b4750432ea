"""Groups on the event loop, and as the clients of one org see them."""

from cordwood.server.groups.consumer import new_coordinator
from cordwood.server.groups.serving import EXPIRY_SECONDS, PARTITION, Groups
from cordwood.server.groups.tenants import TenantGroups, settling

__all__ = ["EXPIRY_SECONDS", "PARTITION", "Groups", "TenantGroups", "new_coordinator", "settling"]
