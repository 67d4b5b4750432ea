"""What Spark runs in place of its own ``pipelines/cli.py``: that, with three things in their place.

The storage may be another one than the file of the pipeline says. All settings of the command line reach the
server that Spark starts here: Spark 4.3 hands them on ten at a time, and keeps the last ten. And that server
takes a free port rather than always the same, so that pipelines can run beside each other.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from typing import Any

#: The variable that says where the storage of the pipeline is, if not where its file says.
STORAGE = "CORDWOOD_PIPELINE_STORAGE"
#: The variables in which Spark hands settings on: so many parts, each a JSON object.
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
    """Make one part of the parts in which settings are handed on, with *more* in it."""
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
