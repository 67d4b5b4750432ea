"""Debezium in a Connect worker: the changes of a table of PostgreSQL, while worker and broker are killed."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from interop.brokers import Broker, reported
from interop.connecting import connect_worker
from interop.copying import CommittedReader
from interop.frameworks import SECTION
from interop.postgres import DATABASE, USER, Postgres, postgres
from interop.report import Report
from interop.toolbox import HERE, maven_jars
from support.patience import until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1200)]

#: The rows of each round.
ROWS = 300
CAUGHT_UP_SECONDS_MAX = 300.0
TOPIC = "shop.public.orders"


def test_debezium_tells_every_change_of_a_table(broker: Broker, report: Report, tmp_path: Path) -> None:
    """Over kill -9 of broker and worker: who applies the changes in their order has the table in the end."""
    jars = maven_jars(HERE / "debezium" / "pom.xml")
    (version,) = (
        found[1] for jar in jars if (found := re.fullmatch(r"debezium-connector-postgres-(.+)", jar.stem))
    )
    classpath = os.pathsep.join(map(str, jars))
    how = "changes of PostgreSQL in a Connect worker; worker and broker killed"
    with (
        postgres() as database,
        reported(report, broker, "Debezium", version, how, SECTION),
        connect_worker(broker.bootstrap, tmp_path, "a", classpath=classpath) as worker,
    ):
        until(database.ready, "PostgreSQL answers", pause=0.1)
        database.run("create table orders (id int primary key, item text not null)")
        _insert(database, 0)
        worker.configure("orders", _settings(database.port))
        _until_told(broker, database)
        _insert(database, ROWS)
        broker.restart(kill=True)
        database.run(f"update orders set item = 'changed ' || id where id % 3 = 0 and id < {ROWS}")
        _until_told(broker, database)
        worker.stop(kill=True)
        database.run("delete from orders where id % 5 = 0")
        _insert(database, 2 * ROWS)
        worker.start()
        _until_told(broker, database)


def _settings(port: int) -> dict[str, str]:
    json_converter = "org.apache.kafka.connect.json.JsonConverter"
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "tasks.max": "1",
        "plugin.name": "pgoutput",
        "database.hostname": "127.0.0.1",
        "database.port": str(port),
        "database.user": USER,
        "database.password": "",
        "database.dbname": DATABASE,
        "topic.prefix": "shop",
        "table.include.list": "public.orders",
        "publication.autocreate.mode": "filtered",
        "topic.creation.default.partitions": "1",
        "topic.creation.default.replication.factor": "-1",
        "key.converter": json_converter,
        "key.converter.schemas.enable": "false",
        "value.converter": json_converter,
        "value.converter.schemas.enable": "false",
    }


def _insert(database: Postgres, first: int) -> None:
    database.run(
        f"insert into orders select id, 'item ' || id from generate_series({first}, {first + ROWS - 1}) id"
    )


def _until_told(broker: Broker, database: Postgres) -> None:
    """Wait until the topic's changes make the table."""
    lines = database.run("select id, item from orders").splitlines()
    expected = {int(number): item for number, _, item in (line.partition("|") for line in lines)}
    with CommittedReader(broker.bootstrap, TOPIC, 1) as reader:

        def told() -> bool:
            reader.poll()
            return _applied(reader) == expected

        until(told, f"{len(expected)} rows were told", CAUGHT_UP_SECONDS_MAX, pause=0.2)


def _applied(reader: CommittedReader) -> dict[int, str]:
    """Return the table that the changes make."""
    rows: dict[int, str] = {}
    for value in reader.values[0]:
        if not value:
            # For compaction: it comes after the change of a row that is deleted.
            continue
        change = json.loads(value)
        if change["op"] in {"c", "r", "u"}:
            rows[change["after"]["id"]] = change["after"]["item"]
        elif change["op"] == "d":
            rows.pop(change["before"]["id"], None)
    return rows
