"""Answer each record with FastStream, over confluent-kafka or aiokafka, to the topic ``answers``."""

from __future__ import annotations

import asyncio
import importlib
import sys
from typing import Any

from faststream import AckPolicy, Context, FastStream  # type: ignore[import-not-found, unused-ignore]


def application(backend: str, bootstrap: str) -> FastStream:
    """Return the application; *backend* is ``confluent`` or ``kafka``."""
    broker = importlib.import_module(f"faststream.{backend}").KafkaBroker(bootstrap)
    publisher = broker.publisher("answers")

    @broker.subscriber(  # type: ignore[untyped-decorator, unused-ignore]
        "questions", group_id="faststream", auto_offset_reset="earliest", ack_policy=AckPolicy.ACK
    )
    async def answer(question: Any, message: Any = Context()) -> None:  # noqa: B008
        key = message.raw_message.key
        await publisher.publish(f"answer {question}", key=key() if callable(key) else key)

    return FastStream(broker)


if __name__ == "__main__":
    asyncio.run(application(*sys.argv[1:]).run())
