"""A checker of the protocol of the bucket: runs its generators step by step, in every order, with faults."""

from support.bucket_model.search import Scenario, Tally, explore, replay, sample
from support.bucket_model.world import Limits, Violation, World

__all__ = ["Limits", "Scenario", "Tally", "Violation", "World", "explore", "replay", "sample"]
