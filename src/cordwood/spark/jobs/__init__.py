"""The jobs of the data pipeline: each a function of a session and its options that returns a report.

Spark decides and stages, the engine's code writes bytes, the owner of a directory publishes. Only the
DataFrame API is used, so jobs run through Spark Connect and on any cluster that has Cordwood installed.
"""

from cordwood.spark.jobs import compacting, converting, reindexing, verifying
from cordwood.spark.jobs.ingesting import IngestOptions, IngestReport, Partitioner, ingest
from cordwood.spark.jobs.log_place import LogPlace
from cordwood.spark.jobs.materializing import MaterializeOptions, MaterializeReport, materialize
from cordwood.spark.jobs.reindexing import ReindexOptions, reindex
from cordwood.spark.jobs.verifying import VerifyOptions, verify
from cordwood.spark.jobs.windows import WindowedSums

__all__ = [
    "IngestOptions",
    "IngestReport",
    "LogPlace",
    "MaterializeOptions",
    "MaterializeReport",
    "Partitioner",
    "ReindexOptions",
    "VerifyOptions",
    "WindowedSums",
    "compacting",
    "converting",
    "ingest",
    "materialize",
    "reindex",
    "reindexing",
    "verify",
    "verifying",
]
