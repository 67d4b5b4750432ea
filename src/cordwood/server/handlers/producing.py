"""Produce: passes batches to the pipeline and returns their offsets."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from cordwood.broker import BrokerTopic, Placed, is_command, is_read_only
from cordwood.errors import (
    CordwoodError,
    LeaseExpired,
    LogFailed,
    QuotaExceeded,
    RecordRefused,
    RecordsRejected,
    UnknownTopic,
)
from cordwood.formats import BatchFormat
from cordwood.formats.batch import TRANSACTIONAL
from cordwood.protocol import ErrorCode
from cordwood.protocol.messages import (
    ProducePartition,
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
    ProduceTopicResponse,
    RecordError,
)
from cordwood.security import Operation
from cordwood.server.answers import code_of, message_of
from cordwood.server.connections import Exchange
from cordwood.server.context import Context
from cordwood.server.pipeline import Outcome
from cordwood.server.quotas import OrgQuotas, StoredBytes
from cordwood.server.recompressing import Batch
from cordwood.server.security import Rights
from cordwood.storage.sink import Share

_ACKS = (-1, 0, 1)
#: The first version that names topics by id.
BY_ID_FROM = 13
#: The first version whose producers know TRANSACTION_ABORTABLE: they abort, and go on.
ABORTABLE_FROM = 11
#: The position in a batch of the byte that says whether it is transactional.
_ATTRIBUTES_AT = 22
#: The position of the producer id, and of what follows it.
_PRODUCER_ID_AT, _PRODUCER_EPOCH_AT = 43, 51
_LOGGER = logging.getLogger("cordwood.server")


class _ProducePlan:
    """The batches of a request to append, and the answers to its refused ones."""

    def __init__(self, context: Context, exchange: Exchange) -> None:
        request: ProduceRequest = exchange.request.body
        self.acks = request.acks
        self.batches: list[Batch] = []
        # Answers in the order of the request; None is the place of the next batch's outcome.
        self.topics: list[tuple[ProduceTopic, list[ProducePartitionResponse | None]]] = []
        # Without an authorizer nothing is asked for each topic.
        rights = None if context.authorization is None else context.rights(exchange)
        refusal = _refusal(context, request, rights)
        self.version = exchange.request.api_version
        by_id = exchange.request.api_version >= BY_ID_FROM
        tenant = context.tenant
        for topic in request.topics:
            found = tenant.find_by_id(topic.topic_id) if by_id else tenant.find(topic.name)
            places: list[ProducePartitionResponse | None] = []
            denied = None
            if rights is not None and refusal is None:
                denied = _denied(rights, topic, found, by_id=by_id)
            for partition in topic.partitions:
                code, message = refusal or denied or _check(found, partition, request.acks, by_id=by_id)
                if code is ErrorCode.NONE:
                    code, message = _check_owner(context, request.transactional_id, partition.records)
                if code is ErrorCode.NONE:
                    assert found is not None
                    assert partition.records is not None
                    self.batches.append(Batch(found.key, partition.index, partition.records, found.entry.id))
                    places.append(None)
                else:
                    places.append(_refused(partition.index, code, message))
            self.topics.append((topic, places))


def produce(context: Context, exchange: Exchange) -> None:
    """Append batches and answer according to ``acks``."""
    plan = _ProducePlan(context, exchange)
    batches = plan.batches
    commands = [batch for batch in batches if is_command(batch.topic, batch.partition)]
    sizes = [len(batch.data) for batch in batches]
    started_ns = context.meter.now_ns()
    # Throttled now, not when answered: by then the client may have sent very many more requests.
    throttle_ms, quotas = 0, context.quotas
    if quotas.limits_producers:
        throttle_ms = quotas.produced(exchange.quota_client, exchange.size)
        exchange.throttle(throttle_ms)

    def answer(outcomes: Sequence[Outcome]) -> None:
        if not context.node.may_acknowledge():
            outcomes = [LeaseExpired() if isinstance(each, Placed) else each for each in outcomes]
        context.meter.produced(started_ns, zip(sizes, outcomes, strict=True))
        _answer(exchange, plan, outcomes, throttle_ms)

    def done(outcomes: Sequence[Outcome]) -> None:
        if len(outcomes) < len(batches):
            # Cancelled: the client has disconnected.
            return
        if commands:
            stored = list(zip(batches, outcomes, strict=True))
            exchange.attempt(lambda: _execute(context, exchange, stored, answer))
        else:
            exchange.attempt(lambda: answer(outcomes))

    if not batches:
        done(())
    elif context.quotas.stored is not None:
        _admit(context.quotas, context.quotas.stored, context, exchange, plan, done)
    else:
        _submit(context, exchange, plan, done)


def _submit(
    context: Context, exchange: Exchange, plan: _ProducePlan, done: Callable[[Sequence[Outcome]], None]
) -> None:
    job = context.pipeline.submit(plan.batches, plan.acks, done)
    if plan.acks != 0:
        # A client that disconnects before the answer has no guarantee.
        exchange.on_lost = job.cancel


def _admit(
    quotas: OrgQuotas,
    stored: StoredBytes,
    context: Context,
    exchange: Exchange,
    plan: _ProducePlan,
    done: Callable[[Sequence[Outcome]], None],
) -> None:
    """Append the batches if the org's quota allows it, else refuse them."""
    sizes = [len(batch.data) for batch in plan.batches]

    def settled(outcomes: Sequence[Outcome]) -> None:
        # A cancelled job has no outcomes for batches that were not appended.
        appended = sum(
            size for size, outcome in zip(sizes, outcomes, strict=False) if isinstance(outcome, Placed)
        )
        stored.settle(sum(sizes), sum(sizes) - appended)
        done(outcomes)

    def decided(admitted: bool) -> None:
        exchange.on_lost = None
        if admitted:
            _submit(context, exchange, plan, settled)
        else:
            done([QuotaExceeded(quotas.stored_refusal())] * len(sizes))

    give_up = stored.admit(sum(sizes), lambda admitted: exchange.attempt(lambda: decided(admitted)))
    if give_up is not None:
        exchange.on_lost = give_up


def _denied(
    rights: Rights, topic: ProduceTopic, found: BrokerTopic | None, *, by_id: bool
) -> tuple[ErrorCode, str | None] | None:
    """Return the error code and message if the client may not write to a topic, or None.

    A topic that is given by id has a name only if it was found.
    """
    if by_id and found is None:
        return None
    code = rights.topic_refusal(Operation.WRITE, topic.name if found is None else found.name)
    return None if code is None else (code, None)


def _check(
    topic: BrokerTopic | None, partition: ProducePartition, acks: int, *, by_id: bool
) -> tuple[ErrorCode, str | None]:
    """Return the error code and message for a partition's batch, or NONE and None."""
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None
    if is_read_only(topic.name):
        return ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic.name} is internal"
    if partition.records is None:
        return ErrorCode.INVALID_RECORD, "there are no records"
    if is_command(topic.key, partition.index) and acks != -1:
        return ErrorCode.INVALID_REQUIRED_ACKS, "a command needs acks=all"
    return ErrorCode.NONE, None


def _execute(
    context: Context,
    exchange: Exchange,
    stored: Sequence[tuple[Batch, Outcome]],
    answer: Callable[[Sequence[Outcome]], None],
) -> None:
    """Execute the commands in the batches, off the loop, and answer when that is done."""
    shares: list[Share] = []
    rights = context.rights(exchange)

    def permits(topic: str) -> bool:
        return rights.topic_refusal(Operation.WRITE, topic) is None

    def work() -> list[Outcome]:
        outcomes: list[Outcome] = []
        for batch, outcome in stored:
            if isinstance(outcome, Placed) and is_command(batch.topic, batch.partition):
                try:
                    records = BatchFormat().decode(batch.data, 0)
                    shares.extend(context.node.sink.execute(batch.topic, records, permits))
                except CordwoodError as error:
                    _LOGGER.warning("a command in %s was not executed: %s", batch.topic, error)
                    # The unknown topic is one that the command names: the producer must not retry.
                    outcome = RecordRefused(str(error)) if isinstance(error, UnknownTopic) else error
            outcomes.append(outcome)
        return outcomes

    def then(outcomes: list[Outcome]) -> None:
        context.quotas.freed()
        for share in shares:
            for section in share.sections:
                context.parking.advance((section.topic, section.partition), section.size)
        for outcome in outcomes:
            if isinstance(outcome, LogFailed):
                context.pipeline.fail(outcome)
        answer(outcomes)

    context.publishing.run(exchange, work, then)


def _refusal(
    context: Context, request: ProduceRequest, rights: Rights | None
) -> tuple[ErrorCode, str | None] | None:
    """Return the error code and message if the whole request is refused, or None."""
    if rights is not None and _is_transactional(request):
        if request.transactional_id is None:
            return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, None
        code = rights.transaction_refusal(Operation.WRITE, request.transactional_id)
        if code is not None:
            return code, None
    if request.acks not in _ACKS:
        return ErrorCode.INVALID_REQUIRED_ACKS, f"acks must be -1, 0 or 1, not {request.acks}"
    if request.transactional_id is not None and not context.transactions.loaded:
        # A code that producers retry: the transaction may be ongoing, and is known soon.
        return ErrorCode.NOT_ENOUGH_REPLICAS, "transactions are not loaded yet"
    return None


def _is_transactional(request: ProduceRequest) -> bool:
    """Return whether a batch of *request* is part of a transaction, whatever the request says of itself."""
    records = (partition.records for topic in request.topics for partition in topic.partitions)
    return any(each is not None and _in_transaction(each) for each in records)


def _in_transaction(records: memoryview) -> bool:
    return len(records) > _ATTRIBUTES_AT and bool(records[_ATTRIBUTES_AT] & TRANSACTIONAL)


def _check_owner(
    context: Context, transactional_id: str | None, records: memoryview | None
) -> tuple[ErrorCode, str | None]:
    """Return the error code and message for a batch of a transaction of another transactional id.

    Producer ids can be guessed, and the append asks for nothing else: the batch would be committed with the
    other transaction, and the batch of its real producer be taken for a repetition.
    """
    if records is None or not _in_transaction(records):
        return ErrorCode.NONE, None
    producer_id = int.from_bytes(records[_PRODUCER_ID_AT:_PRODUCER_EPOCH_AT], "big", signed=True)
    if producer_id < 0:
        # The append says what is wrong with it.
        return ErrorCode.NONE, None
    if transactional_id is None:
        # As in Kafka, with and without an authorizer.
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "the request names no transactional id"
    transactions = context.transactions
    found = transactions.find(transactional_id) if transactions.takes(transactional_id) else None
    if found is None or found.identity.producer_id != producer_id:
        message = f"producer {producer_id} is not the producer of this transactional id"
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING, message
    return ErrorCode.NONE, None


def _refused(index: int, code: ErrorCode, message: str | None = None) -> ProducePartitionResponse:
    return ProducePartitionResponse(index=index, error_code=code, error_message=message)


def _answer(exchange: Exchange, plan: _ProducePlan, outcomes: Sequence[Outcome], throttle_ms: int) -> None:
    rest = iter(outcomes)
    topics = [
        ProduceTopicResponse(
            topic.name,
            topic.topic_id,
            [
                answer or _answer_of(partition.index, next(rest), plan.version)
                for partition, answer in zip(topic.partitions, answers, strict=True)
            ],
        )
        for topic, answers in plan.topics
    ]
    if plan.acks != 0:
        exchange.answer(ProduceResponse(topics, throttle_ms))
    elif any(partition.error_code for topic in topics for partition in topic.partitions):
        # With acks=0 there is no answer. As in Kafka, the connection is closed, so that the producer notices.
        exchange.show(ProduceResponse(topics, throttle_ms))
        exchange.fail("a batch sent with acks=0 was refused")
    else:
        exchange.answer(None)


def _answer_of(index: int, outcome: Outcome, version: int) -> ProducePartitionResponse:
    if isinstance(outcome, Placed):
        return ProducePartitionResponse(
            index=index,
            base_offset=outcome.base_offset,
            log_append_time_ms=outcome.append_timestamp,
            log_start_offset=outcome.log.log_start_offset,
        )
    code = code_of(outcome)
    if code is ErrorCode.INVALID_TXN_STATE and version >= ABORTABLE_FROM:
        code = ErrorCode.TRANSACTION_ABORTABLE
    answer = _refused(index, code, message_of(outcome))
    if isinstance(outcome, RecordsRejected):
        # From version 8 on, a client then distinguishes these records from the valid ones of their batch.
        answer.record_errors = [RecordError(at, reason) for at, reason in outcome.reasons.items()]
    return answer
