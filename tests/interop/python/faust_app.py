"""Answer each record with faust, and with what its table had of the key before, to the topic ``answers``."""

from __future__ import annotations

import os
from typing import Any

import faust  # type: ignore[import-not-found, unused-ignore]

app = faust.App(
    "faust",
    broker=f"kafka://{os.environ['BOOTSTRAP']}",
    store="memory://",
    datadir=os.environ["STATE"],
    topic_partitions=2,
    value_serializer="raw",
    broker_session_timeout=10.0,
    broker_heartbeat_interval=2.0,
    broker_commit_interval=0.5,
    stream_wait_empty=False,
)
questions = app.topic("questions", key_serializer="raw", value_serializer="raw")
answers = app.topic("answers", key_serializer="raw", value_serializer="raw")
latest = app.Table("latest", key_type=str, value_type=str, partitions=2)


@app.agent(questions)  # type: ignore[untyped-decorator, unused-ignore]
async def answer(stream: Any) -> None:
    """Remember the latest record of each key."""
    async for event in stream.events():
        key, value = event.key.decode(), event.value.decode()
        before = latest.get(key, "nothing")
        latest[key] = value
        await answers.send(key=event.key, value=f"{before} {value}".encode())


if __name__ == "__main__":
    app.main()
