"""A replacement for Spark's ``pipelines/cli.py`` that calls it with three corrections.

The storage may differ from the pipeline's file. All settings of the command line reach the server that Spark
starts: Spark 4.3 passes them ten at a time and keeps only the last ten. And that server uses a free port
instead of a fixed one, so that pipelines can run at the same time.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from typing import Any

#: The environment variable that overrides the storage of the pipeline.
STORAGE = "CORDWOOD_PIPELINE_STORAGE"
#: The environment variables in which Spark passes settings: the number of parts, each a JSON object.
_SETTINGS = "PYSPARK_REMOTE_INIT_CONF_"
_PARTS = f"{_SETTINGS}LEN"
_PORT = "spark.connect.grpc.binding.port"


def main() -> None:
    """Run Spark's command."""
    from pyspark.pipelines import cli
    from pyspark.sql.connect.client.core import DefaultChannelBuilder

    if os.environ.get("SPARK_REMOTE", "local").startswith("local"):
        port = _free_port()
        join_settings({_PORT: str(port)})
        DefaultChannelBuilder.default_port = staticmethod(lambda: port)  # type: ignore[method-assign]
    storage, unpack = os.environ.get(STORAGE), cli.unpack_pipeline_spec

    def unpack_with_storage(spec_data: Mapping[str, Any]) -> cli.PipelineSpec:
        return unpack({**spec_data, "storage": storage})

    if storage is not None:
        cli.unpack_pipeline_spec = unpack_with_storage
    cli.main()


def join_settings(more: Mapping[str, str]) -> None:
    """Merge the parts of the passed settings and *more* into one part."""
    joined: dict[str, str] = {}
    for part in range(int(os.environ.get(_PARTS, "0"))):
        joined |= json.loads(os.environ.pop(f"{_SETTINGS}{part}"))
    os.environ[f"{_SETTINGS}0"] = json.dumps({**joined, **more})
    os.environ[_PARTS] = "1"


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


if __name__ == "__main__":
    main()
