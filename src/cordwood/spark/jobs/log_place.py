"""Where the log of a job is: a data directory that every executor sees, or a broker."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession

from cordwood.spark.access import Access, open_access
from cordwood.spark.options import Place


@dataclass(frozen=True)
class LogPlace:
    """A data directory or the address of a broker, one of them; *client* are settings of a Kafka client."""

    path: str | None = None
    bootstrap: str | None = None
    client: Mapping[str, str] = field(default_factory=dict)

    def options(self) -> dict[str, str]:
        """Return the options that lead ``format("cordwood")`` there."""
        if self.path is not None:
            return {"path": os.path.abspath(self.path)}
        assert self.bootstrap is not None
        settings = {"bootstrap.servers": self.bootstrap, **self.client}
        return {f"kafka.{name}": value for name, value in settings.items()}

    def read(
        self, spark: SparkSession, topic: str, *, schema: str | None = None, **options: str
    ) -> DataFrame:
        """Return the records of a topic; *schema* names the columns that are decoded, all unless given."""
        reader = spark.read.format("cordwood").options(**self.options(), subscribe=topic, **options)
        return (reader if schema is None else reader.schema(schema)).load()

    @contextlib.contextmanager
    def access(self) -> Iterator[Access]:
        """Open it in the driver, to ask what there is.

        Raises:
            StorageError: If there is no data directory.
        """
        path = None if self.path is None else os.path.abspath(self.path)
        place = Place(path, {"bootstrap.servers": self.bootstrap or "", **self.client}, group_id=None)
        with contextlib.closing(open_access(place, verify=True)) as access:
            yield access
