"""Sending records and waiting for their acknowledgements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cordwood.errors import CordwoodError
from cordwood.kafka_client.client import KafkaClient

#: The client's number for a partition that it chooses itself.
ANY_PARTITION = -1
_POLL_SECONDS = 0.1


class Sender:
    """A producer that remembers which offsets its records got, and why one was refused. One thread."""

    def __init__(self, client: KafkaClient, settings: Mapping[str, Any]) -> None:
        """Make a producer with *settings*. Raises as `KafkaClient.producer` does."""
        self._client = client
        self._producer: Any = client.producer(settings)
        self._refused: str | None = None
        self.sent = 0
        self.offsets: list[int] = []

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        partition: int = ANY_PARTITION,
        **more: Any,
    ) -> None:
        """Hand over a record, waiting while the producer's queue is full.

        Raises:
            CordwoodError: If the producer refuses it at once.
        """
        self.sent += 1
        while True:
            try:
                self._client.asked(
                    "sending",
                    self._producer.produce,
                    topic,
                    value,
                    key,
                    partition,
                    on_delivery=self._delivered,
                    **more,
                )
                return
            except BufferError:
                self._producer.poll(_POLL_SECONDS)

    def check(self) -> None:
        """Take the acknowledgements that have come.

        Raises:
            CordwoodError: If the broker refused a record.
        """
        self._producer.poll(0)
        if self._refused is not None:
            raise CordwoodError(f"{self._client.address} did not take a record: {self._refused}")

    def finish(self, seconds: float | None = None) -> None:
        """Wait until every record is acknowledged, for no longer than *seconds*.

        Raises:
            CordwoodError: As `check` does, or if it takes longer.
        """
        waited = 0.0
        while left := self._producer.flush(_POLL_SECONDS):
            self.check()
            waited += _POLL_SECONDS
            if seconds is not None and waited >= seconds:
                raise CordwoodError(f"{left} records were not acknowledged by {self._client.address} in time")
        self.check()

    def discard(self) -> None:
        """Drop the records that were not sent yet."""
        self._producer.purge()

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            self.offsets.append(message.offset())
        elif self._refused is None:
            self._refused = error.str()
