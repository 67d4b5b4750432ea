"""The stats job: counting, the report, the picture."""

from cordwood.spark.jobs.stats.counting import observed
from cordwood.spark.jobs.stats.job import StatsOptions, StatsReport, TopicStats, stats
from cordwood.spark.jobs.stats.picture import check_can_draw, draw, time_text

__all__ = [
    "StatsOptions",
    "StatsReport",
    "TopicStats",
    "check_can_draw",
    "draw",
    "observed",
    "stats",
    "time_text",
]
