"""Maintenance in the background: retention and compaction, chains, scrubbing."""

from cordwood.server.maintenance.following import ChainFollowing
from cordwood.server.maintenance.periodic import PeriodicMaintenance
from cordwood.server.maintenance.scrubbing import Scrubber

__all__ = [
    "ChainFollowing",
    "PeriodicMaintenance",
    "Scrubber",
]
