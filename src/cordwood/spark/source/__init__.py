"""The source: schema, filters, plans of batch and streaming reads."""

from cordwood.spark.source.progress import LagListener, lag_of
from cordwood.spark.source.reader import Build
from cordwood.spark.source.schema import arrow_schema, spark_schema, with_null_headers
from cordwood.spark.source.stream_reader import StreamReader

__all__ = [
    "Build",
    "LagListener",
    "StreamReader",
    "arrow_schema",
    "lag_of",
    "spark_schema",
    "with_null_headers",
]
