"""Count the records of each key with quixstreams: each count goes to the topic ``answers``, exactly once."""

from __future__ import annotations

import sys
from typing import Any

from quixstreams import Application  # type: ignore[import-not-found, unused-ignore]


def count(value: str, state: Any) -> str:
    """Return how many records the key of this one had so far, and the record."""
    seen = state.get("seen", 0) + 1
    state.set("seen", seen)
    return f"{seen} {value}"


def main(bootstrap: str, state_dir: str) -> None:
    """Run until ended."""
    app = Application(
        broker_address=bootstrap,
        consumer_group="quixstreams",
        auto_offset_reset="earliest",
        state_dir=state_dir,
        processing_guarantee="exactly-once",
        commit_interval=0.5,
        consumer_extra_config={"session.timeout.ms": 10_000},
    )
    questions = app.topic("questions", key_deserializer="str", value_deserializer="str")
    answers = app.topic("answers", key_serializer="str", value_serializer="str")
    app.dataframe(questions).apply(count, stateful=True).to_topic(answers)
    app.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
