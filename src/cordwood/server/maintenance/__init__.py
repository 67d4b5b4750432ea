"""Maintenance in the background: retention and compaction, chains, hashes of segments, scrubbing."""

from cordwood.server.maintenance.following import ChainFollowing
from cordwood.server.maintenance.hashing import SealHashing
from cordwood.server.maintenance.periodic import PeriodicMaintenance
from cordwood.server.maintenance.scrubbing import Scrubber

__all__ = [
    "ChainFollowing",
    "PeriodicMaintenance",
    "Scrubber",
    "SealHashing",
]
