"""``format("cordwood")``: the entry point of Spark, which creates readers and writers from options."""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from cordwood.errors import ConfigError
from cordwood.spark.failures import in_one_sentence
from cordwood.spark.options import check_names, check_read_options, is_read, warn_without_effect
from cordwood.spark.source.reader import PlannedReader, PushingReader
from cordwood.spark.source.schema import spark_schema
from cordwood.spark.source.tables import for_reading, for_writing, is_table, options_of, with_options
from cordwood.storage.meta import local_path

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamReader, DataSourceStreamWriter, DataSourceWriter

#: Spark loads it only in processes that push filters; the setting itself is not visible there.
_PUSHING = "pyspark.sql.worker.data_source_pushdown_filters"


@in_one_sentence
class CordwoodSource(DataSource):
    """Topics of a data directory or of a broker, for reading and writing.

    Options are checked at construction, so that ``load()`` fails with the reason: Spark would replace an
    error in `streamReader` by its own.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        given = check_names(options)
        self._table = is_table(options)
        if self._table:
            check_read_options(for_reading(given))
        elif is_read(given):
            check_read_options(given)
        if "path" in given:
            # An executor has another working directory than the driver.
            given["path"] = os.path.abspath(local_path(given["path"]))
        super().__init__(given)

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "cordwood"

    def schema(self) -> StructType:
        """Return the default columns."""
        if self._table:
            asked = check_read_options(for_reading(self.options))
            return with_options(spark_schema(include_headers=asked.include_headers), self.options)
        return spark_schema(include_headers=check_read_options(self.options).include_headers)

    def reader(self, schema: StructType) -> PlannedReader:
        """Return the reader of a batch query."""
        options = check_read_options(self._reading(schema), streaming=False)
        warn_without_effect(self._reading(schema), "batch")
        # Spark 4.3 keeps the plan of a query with pushed filters for the next one over the same DataFrame,
        # and that one would silently miss records. So filters narrow only if the user enables it.
        kind = PushingReader if options.push_filters and _PUSHING in sys.modules else PlannedReader
        return kind(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the reader of a streaming query."""
        from cordwood.spark.source.stream_reader import StreamReader

        return StreamReader(self._reading(schema), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch query."""
        if overwrite:
            raise ConfigError("mode", 'a log cannot be overwritten: use mode("append"), or INSERT INTO')
        from cordwood.spark.sink import batch_writer

        return batch_writer(self._writing(schema), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Return the writer of a streaming query."""
        from cordwood.spark.sink import stream_writer

        return stream_writer(self._writing(schema), schema)

    def _reading(self, schema: StructType) -> dict[str, str]:
        """Return the options of this query and of its table."""
        return {**for_reading(options_of(schema)), **self.options}

    def _writing(self, schema: StructType) -> dict[str, str]:
        return {**for_writing(options_of(schema)), **self.options}
