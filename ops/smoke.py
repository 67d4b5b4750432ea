"""Try an installed Cordwood, with what is installed beside it: `python ops/smoke.py`.

Needs only the package. Each extra is tried if its packages are there; with `--require NAME` it is an error
if they are not. Prints one line for each step, and the time that importing took.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

#: The packages that each extra brings, and by which it is known.
EXTRAS = {
    "fast": "uvloop",
    "signed": "cryptography",
    "oauth": "joserfc",
    "bucket": "obstore",
    "traces": "opentelemetry",
    "spark": "pyspark",
    "pipelines": "grpc",
    "testing": "confluent_kafka",
}


def embedded(data: str) -> str:
    """Append, close, open again, read, scan."""
    import cordwood

    with cordwood.open(data) as log:
        log.topic("orders", partitions=2).append_many([(b"anna", b"axe"), (b"bela", b"saw")])
    with cordwood.open(data) as log:
        orders = log.topic("orders")
        read = {record.value for partition in range(2) for record in orders.read(partition)}
        assert read == {b"axe", b"saw"}
        import pyarrow

        assert pyarrow.table(log.scan("orders")).num_rows == 2
    from cordwood import kernels

    return f"appended, opened again, read, scanned; {'compiled' if kernels.COMPILED else 'plain'} kernels"


def served(data: str) -> str:
    """Start a broker and connect to it."""
    import socket

    import cordwood

    with cordwood.Broker(data) as broker:
        host, port = broker.bootstrap.rsplit(":", 1)
        socket.create_connection((host, int(port)), 10).close()
    return "a broker started and accepted a connection"


def commands(data: str) -> str:
    """Run the command line on the same directory."""
    cordwood = [sys.executable, "-m", "cordwood.cli"]
    for arguments in (["--version"], ["verify", "--data", data], ["topic", "list", "--data", data]):
        subprocess.run([*cordwood, *arguments], check=True, stdout=subprocess.DEVNULL)
    return "--version, verify and topic list"


def signed(data: str) -> str:
    """Sign a checkpoint and prove a record."""
    import cordwood

    with cordwood.open(data) as log:
        log.checkpoint("orders")
    key = cordwood.list_checkpoints(data).key
    partition = 0 if cordwood.open(data, read_only=True).topic("orders").high_watermark(0) else 1
    document = cordwood.prove(data, "orders", 0, partition=partition).document()
    assert cordwood.verify_proof(document, key).offset == 0
    return "a checkpoint was signed and a record proven"


def main() -> None:
    """Try everything that is installed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--require", action="append", default=[], choices=sorted(EXTRAS))
    required = parser.parse_args().require
    began = time.perf_counter()
    import cordwood

    took_ms = (time.perf_counter() - began) * 1000
    early = sorted({"numpy", "pyarrow", "pyspark", "confluent_kafka"} & set(sys.modules))
    assert not early, f"importing cordwood loads {', '.join(early)}"
    print(f"cordwood {cordwood.__version__} on Python {sys.version.split()[0]}: imported in {took_ms:.0f} ms")
    there = [name for name, package in EXTRAS.items() if importlib.util.find_spec(package)]
    missing = sorted(set(required) - set(there))
    if missing:
        sys.exit(f"the packages of these extras are missing: {', '.join(missing)}")
    steps: list[Callable[[str], str]] = [embedded, served, commands]
    steps += [signed] if "signed" in there else []
    with tempfile.TemporaryDirectory() as data:
        for step in steps:
            print(f"{step.__name__}: {step(data)}")
    print(f"extras: {', '.join(there) or 'none'}")


if __name__ == "__main__":
    main()
