"""Produce: batches to the pipeline, their places back."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from cordwood.broker.node import Placed
from cordwood.broker.sink import is_command
from cordwood.broker.topics import INTERNAL
from cordwood.errors import CordwoodError, LogFailed, RecordRefused, UnknownTopic
from cordwood.formats.native import BatchFormat
from cordwood.protocol.error_codes import ErrorCode
from cordwood.protocol.produce import (
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
    ProduceTopicResponse,
)
from cordwood.server.answers import code_of, message_of
from cordwood.server.connection import Exchange
from cordwood.server.context import Context
from cordwood.server.pipeline import Batch, Outcome
from cordwood.storage.staging import Share

_ACKS = (-1, 0, 1)
_LOGGER = logging.getLogger("cordwood.server")


def produce(context: Context, exchange: Exchange) -> None:
    """Append batches; answer as ``acks`` asks."""
    request: ProduceRequest = exchange.request.body
    refusal = _refusal(request)
    batches: list[Batch] = []
    # Answers in the order of the request; None where the pipeline's next outcome goes.
    planned: list[tuple[ProduceTopic, list[ProducePartitionResponse | None]]] = []
    for topic in request.topics:
        by_id = exchange.request.api_version >= 13
        topics = context.node.topics
        entry = topics.find_by_id(topic.topic_id) if by_id else topics.find(topic.name)
        places: list[ProducePartitionResponse | None] = []
        for partition in topic.partitions:
            if refusal is not None:
                places.append(_refused(partition.index, *refusal))
            elif entry is None:
                code = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                places.append(_refused(partition.index, code))
            elif entry.name in INTERNAL:
                message = f"{entry.name} is internal"
                places.append(_refused(partition.index, ErrorCode.INVALID_TOPIC_EXCEPTION, message))
            elif partition.records is None:
                places.append(_refused(partition.index, ErrorCode.INVALID_RECORD, "there are no records"))
            elif is_command(entry.name, partition.index) and request.acks != -1:
                message = "a command needs acks=all"
                places.append(_refused(partition.index, ErrorCode.INVALID_REQUIRED_ACKS, message))
            else:
                batches.append(Batch(entry.name, partition.index, partition.records, entry.id))
                places.append(None)
        planned.append((topic, places))

    commands = [batch for batch in batches if is_command(batch.topic, batch.partition)]
    sizes = [len(batch.data) for batch in batches]
    started_ns = context.meter.now_ns()

    def answer(outcomes: Sequence[Outcome]) -> None:
        context.meter.produced(started_ns, zip(sizes, outcomes, strict=True))
        _answer(exchange, request.acks, planned, outcomes)

    def done(outcomes: Sequence[Outcome]) -> None:
        if commands:
            stored = list(zip(batches, outcomes, strict=True))
            exchange.attempt(lambda: _obey(context, exchange, stored, answer))
        else:
            exchange.attempt(lambda: answer(outcomes))

    if batches:
        job = context.pipeline.submit(batches, request.acks, done)
        if request.acks != 0:
            # Who asked for an answer and did not wait for it was promised nothing.
            exchange.on_lost = job.cancel
    else:
        done(())


def _obey(
    context: Context,
    exchange: Exchange,
    stored: Sequence[tuple[Batch, Outcome]],
    answer: Callable[[Sequence[Outcome]], None],
) -> None:
    """Do what the commands among the batches say, off the loop, and answer when that is done."""
    shares: list[Share] = []

    def work() -> list[Outcome]:
        outcomes: list[Outcome] = []
        for batch, outcome in stored:
            if isinstance(outcome, Placed) and is_command(batch.topic, batch.partition):
                try:
                    records = BatchFormat().decode(batch.data, 0)
                    shares.extend(context.node.sink.obey(batch.topic, records))
                except CordwoodError as error:
                    _LOGGER.warning("a command in %s was not obeyed: %s", batch.topic, error)
                    # Of a command, an unknown topic is one that it names: its producer must not try again.
                    outcome = RecordRefused(str(error)) if isinstance(error, UnknownTopic) else error
            outcomes.append(outcome)
        return outcomes

    def then(outcomes: list[Outcome]) -> None:
        for share in shares:
            for section in share.sections:
                context.parking.advance((section.topic, section.partition), section.size)
        for outcome in outcomes:
            if isinstance(outcome, LogFailed):
                context.pipeline.fail(outcome)
        answer(outcomes)

    context.publishing.run(exchange, work, then)


def _refusal(request: ProduceRequest) -> tuple[ErrorCode, str] | None:
    """Return why none of the request is taken, None if it may be."""
    if request.acks not in _ACKS:
        return ErrorCode.INVALID_REQUIRED_ACKS, f"acks is -1, 0 or 1, not {request.acks}"
    if request.transactional_id is not None:
        return ErrorCode.UNSUPPORTED_VERSION, "transactions are not supported"
    return None


def _refused(index: int, code: ErrorCode, message: str | None = None) -> ProducePartitionResponse:
    return ProducePartitionResponse(index=index, error_code=code, error_message=message)


def _answer(
    exchange: Exchange,
    acks: int,
    planned: Sequence[tuple[ProduceTopic, Sequence[ProducePartitionResponse | None]]],
    outcomes: Sequence[Outcome],
) -> None:
    rest = iter(outcomes)
    topics = [
        ProduceTopicResponse(
            topic.name,
            topic.topic_id,
            [
                answer or _answer_of(partition.index, next(rest))
                for partition, answer in zip(topic.partitions, answers, strict=True)
            ],
        )
        for topic, answers in planned
    ]
    if acks != 0:
        exchange.answer(ProduceResponse(topics))
    elif any(partition.error_code for topic in topics for partition in topic.partitions):
        # Nobody waits for an answer. Closing, as Kafka does, at least makes the producer look again.
        exchange.fail("a batch sent with acks=0 was refused")
    else:
        exchange.answer(None)


def _answer_of(index: int, outcome: Outcome) -> ProducePartitionResponse:
    if isinstance(outcome, Placed):
        return ProducePartitionResponse(
            index=index,
            base_offset=outcome.base_offset,
            log_append_time_ms=outcome.append_timestamp,
            log_start_offset=outcome.log.log_start_offset,
        )
    return _refused(index, code_of(outcome), message_of(outcome))
