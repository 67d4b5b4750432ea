"""The place of a job's log: a data directory that every executor sees, or a broker."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession

from cordwood.spark.access import Access, open_access
from cordwood.spark.options import place_of
from cordwood.storage.meta import local_path


@dataclass(frozen=True)
class LogPlace:
    """Either a data directory or the address of a broker; *client* has settings of the Kafka client."""

    path: str | None = None
    bootstrap: str | None = None
    client: Mapping[str, str] = field(default_factory=dict, repr=False)

    def options(self) -> dict[str, str]:
        """Return the options of ``format("cordwood")`` for this place."""
        if self.path is not None:
            return {"path": os.path.abspath(local_path(self.path))}
        assert self.bootstrap is not None
        settings = {"bootstrap.servers": self.bootstrap, **self.client}
        return {f"kafka.{name}": value for name, value in settings.items()}

    def read(
        self, spark: SparkSession, topic: str, *, schema: str | None = None, **options: str
    ) -> DataFrame:
        """Return the records of a topic; *schema* has the decoded columns, all by default."""
        reader = spark.read.format("cordwood").options(**self.options(), subscribe=topic, **options)
        return (reader if schema is None else reader.schema(schema)).load()

    @contextlib.contextmanager
    def access(self) -> Iterator[Access]:
        """Open it in the driver for queries.

        Raises:
            StorageError: If there is no data directory.
        """
        place = place_of(self.options(), writing=False)
        with contextlib.closing(open_access(place, verify=True)) as access:
            yield access
