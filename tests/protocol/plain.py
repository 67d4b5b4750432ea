"""Our messages to plain ones (see ``definitions``) and back, and whole frames of ours."""

from __future__ import annotations

from typing import Any

from protocol.definitions import CLIENT_ID, CORRELATION_ID, Case, Plain

from cordwood.protocol.apis import (
    APIS,
    ApiKey,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from cordwood.protocol.messages import fetch, produce
from cordwood.protocol.schema import Array, Struct, fields_of
from cordwood.protocol.wire import NULL_ID, WireBytes

#: The first versions of Produce and Fetch that name topics by id, and of Fetch with a tagged replica.
BY_ID_FROM = 13
REPLICA_TAGGED_FROM = 15


def message_class(case: Case) -> type[Any]:
    api = APIS[case.key]
    return (api.request if case.direction == "request" else api.response).message


def to_ours(case: Case, plain: Plain) -> Any:
    """Return our message for *plain*; fails on a field that ours does not have."""
    if case.key in (ApiKey.PRODUCE, ApiKey.FETCH):
        return _BUILDERS[case.name](plain)
    return _build(message_class(case), plain)


def _build(cls: type[Any], plain: Plain) -> Any:
    types = {each.name: each.type for version in range(15) for each in fields_of(cls, version)}

    def value(name: str, given: Any) -> Any:
        kind = types[name]
        if given is None:
            return None
        if isinstance(kind, Struct):
            return _build(kind.message, given)
        if isinstance(kind, Array) and isinstance(kind.element, Struct):
            return [_build(kind.element.message, each) for each in given]
        return given

    return cls(**{name: value(name, given) for name, given in plain.items()})


def from_ours(case: Case, message: Any) -> Plain:
    """Return the plain message of ours, with the fields that the version has."""
    assert type(message) is message_class(case)
    if case.key in (ApiKey.PRODUCE, ApiKey.FETCH):
        taken: Plain = _TAKERS[case.name](message, case.version)
        return taken
    return _take(message, case.version)


def _take(message: Any, version: int) -> Plain:
    def value(given: Any) -> Any:
        if isinstance(given, list):
            return [value(each) for each in given]
        return _take(given, version) if hasattr(given, "__struct_fields__") else given

    return {each.name: value(getattr(message, each.name)) for each in fields_of(type(message), version)}


def encoded(case: Case, message: Any) -> bytes:
    """Return our frame without its length, once the length was found right."""
    if case.direction == "request":
        buffers = encode_request(case.key, case.version, CORRELATION_ID, CLIENT_ID, message)
    else:
        buffers = encode_response(case.key, case.version, CORRELATION_ID, message)
    frame = b"".join(buffers)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    return frame[4:]


def decoded(case: Case, frame: WireBytes) -> Any:
    """Return the body of a frame without its length, once its header was found right."""
    if case.direction == "request":
        request = decode_request(frame)
        assert (request.api_key, request.api_version) == (case.key, case.version)
        assert (request.correlation_id, request.client_id) == (CORRELATION_ID, CLIENT_ID)
        return request.body
    response = decode_response(case.key, case.version, frame)
    assert response.correlation_id == CORRELATION_ID
    return response.body


def understood(case: Case, plain: Plain) -> Plain:
    """Return what we are to understand of *plain*: records that are null read as none at all."""
    kept = without_skipped(case, plain)
    if case.name == "FetchResponse":
        for partition in (each for topic in kept["responses"] for each in topic["partitions"]):
            partition["records"] = partition["records"] or b""
    return kept


def without_skipped(case: Case, plain: Plain) -> Plain:
    """Return *plain* without the tagged fields that we do not declare, and so skip and never write."""
    skipped = _SKIPPED.get(case.name, ())

    def strip(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: strip(each) for name, each in value.items() if name not in skipped}
        return [strip(each) for each in value] if isinstance(value, list) else value

    stripped: Plain = strip(plain)
    return stripped


_SKIPPED = {
    "ProduceResponse": ("current_leader", "node_endpoints"),
    "FetchRequest": ("replica_directory_id", "high_watermark"),
    "FetchResponse": ("diverging_epoch", "current_leader", "snapshot_id", "node_endpoints"),
}


def _view(data: bytes | None) -> memoryview | None:
    return None if data is None else memoryview(data)


def _data(view: memoryview | None) -> bytes | None:
    return None if view is None else bytes(view)


def _by(plain: Plain, name: str = "name") -> tuple[str, bytes]:
    return plain.get(name, ""), plain.get("topic_id", NULL_ID)


def _produce_request(plain: Plain) -> produce.ProduceRequest:
    topics = [
        produce.ProduceTopic(
            *_by(topic),
            [produce.ProducePartition(p["index"], _view(p["records"])) for p in topic["partition_data"]],
        )
        for topic in plain["topic_data"]
    ]
    return produce.ProduceRequest(plain["transactional_id"], plain["acks"], plain["timeout_ms"], topics)


def _named(version: int, by_id_from: int, topic: Any, name: str = "name") -> Plain:
    if version >= by_id_from:
        assert topic.name == ""
        return {"topic_id": topic.topic_id}
    assert topic.topic_id == NULL_ID
    return {name: topic.name}


def _take_produce_request(request: produce.ProduceRequest, version: int) -> Plain:
    topics = [
        {
            **_named(version, BY_ID_FROM, topic),
            "partition_data": [{"index": p.index, "records": _data(p.records)} for p in topic.partitions],
        }
        for topic in request.topics
    ]
    return {
        "transactional_id": request.transactional_id,
        "acks": request.acks,
        "timeout_ms": request.timeout_ms,
        "topic_data": topics,
    }


_PRODUCE_ANSWER = {
    "index": 0,
    "error_code": 0,
    "base_offset": 0,
    "log_append_time_ms": 0,
    "log_start_offset": 5,
    "error_message": 8,
}


def _produce_response(plain: Plain) -> produce.ProduceResponse:
    def partition(p: Plain) -> produce.ProducePartitionResponse:
        errors = [
            produce.RecordError(each["batch_index"], each["batch_index_error_message"])
            for each in p.get("record_errors", [])
        ]
        given = {name: p[name] for name in _PRODUCE_ANSWER if name in p}
        return produce.ProducePartitionResponse(**given, record_errors=errors)

    topics = [
        produce.ProduceTopicResponse(*_by(topic), [partition(p) for p in topic["partition_responses"]])
        for topic in plain["responses"]
    ]
    return produce.ProduceResponse(topics, plain["throttle_time_ms"])


def _take_produce_response(response: produce.ProduceResponse, version: int) -> Plain:
    def partition(p: produce.ProducePartitionResponse) -> Plain:
        taken = {name: getattr(p, name) for name, since in _PRODUCE_ANSWER.items() if version >= since}
        if version >= 8:
            taken["record_errors"] = [
                {"batch_index": each.batch_index, "batch_index_error_message": each.message}
                for each in p.record_errors
            ]
        return taken

    topics = [
        {
            **_named(version, BY_ID_FROM, topic),
            "partition_responses": [partition(p) for p in topic.partitions],
        }
        for topic in response.topics
    ]
    return {"responses": topics, "throttle_time_ms": response.throttle_time_ms}


# Kafka's name, ours, and the first version that has it.
_FETCH_PARTITION = (
    ("partition", "index", 0),
    ("current_leader_epoch", "current_leader_epoch", 9),
    ("fetch_offset", "fetch_offset", 0),
    ("last_fetched_epoch", "last_fetched_epoch", 12),
    ("log_start_offset", "log_start_offset", 5),
    ("partition_max_bytes", "max_bytes", 0),
)
_FETCH_HEAD = (
    ("max_wait_ms", 0),
    ("min_bytes", 0),
    ("max_bytes", 0),
    ("isolation_level", 0),
    ("session_id", 7),
    ("session_epoch", 7),
    ("rack_id", 11),
    ("cluster_id", 12),
)


def _fetch_request(plain: Plain) -> fetch.FetchRequest:
    topics = [
        fetch.FetchTopic(
            *_by(topic, "topic"),
            [
                fetch.FetchPartition(
                    **{ours: p[theirs] for theirs, ours, _ in _FETCH_PARTITION if theirs in p}
                )
                for p in topic["partitions"]
            ],
        )
        for topic in plain["topics"]
    ]
    forgotten = [
        fetch.ForgottenTopic(*_by(topic, "topic"), topic["partitions"])
        for topic in plain.get("forgotten_topics_data", [])
    ]
    head: Plain = {"session_id": 0, "session_epoch": -1, "rack_id": "", "cluster_id": None}
    head |= {name: plain[name] for name, _ in _FETCH_HEAD if name in plain}
    replica = fetch.FetchReplica(**plain.get("replica_state", {}))
    return fetch.FetchRequest(
        replica_id=plain.get("replica_id", -1), topics=topics, forgotten=forgotten, replica=replica, **head
    )


def _take_fetch_request(request: fetch.FetchRequest, version: int) -> Plain:
    taken: Plain = {name: getattr(request, name) for name, since in _FETCH_HEAD if version >= since}
    if version < REPLICA_TAGGED_FROM:
        taken["replica_id"] = request.replica_id
    else:
        replica = request.replica
        taken["replica_state"] = {"replica_id": replica.replica_id, "replica_epoch": replica.replica_epoch}
    taken["topics"] = [
        {
            **_named(version, BY_ID_FROM, topic, "topic"),
            "partitions": [
                {theirs: getattr(p, ours) for theirs, ours, since in _FETCH_PARTITION if version >= since}
                for p in topic.partitions
            ],
        }
        for topic in request.topics
    ]
    if version >= 7:
        taken["forgotten_topics_data"] = [
            {**_named(version, BY_ID_FROM, gone, "topic"), "partitions": gone.partitions}
            for gone in request.forgotten
        ]
    return taken


_FETCH_ANSWER = (
    ("partition_index", "index", 0),
    ("error_code", "error_code", 0),
    ("high_watermark", "high_watermark", 0),
    ("last_stable_offset", "last_stable_offset", 0),
    ("log_start_offset", "log_start_offset", 5),
    ("preferred_read_replica", "preferred_read_replica", 11),
)


def _fetch_response(plain: Plain) -> fetch.FetchResponse:
    def partition(p: Plain) -> fetch.FetchPartitionResponse:
        aborted = p["aborted_transactions"]
        records = p["records"]
        return fetch.FetchPartitionResponse(
            **{ours: p[theirs] for theirs, ours, _ in _FETCH_ANSWER if theirs in p},
            aborted_transactions=None
            if aborted is None
            else [fetch.AbortedTransaction(each["producer_id"], each["first_offset"]) for each in aborted],
            # In pieces, as a log reads them.
            records=[records[:1], records[1:]] if records else (),
        )

    topics = [
        fetch.FetchTopicResponse(*_by(topic, "topic"), [partition(p) for p in topic["partitions"]])
        for topic in plain["responses"]
    ]
    return fetch.FetchResponse(
        plain["throttle_time_ms"], plain.get("error_code", 0), plain.get("session_id", 0), topics
    )


def _take_fetch_response(response: fetch.FetchResponse, version: int) -> Plain:
    def partition(p: fetch.FetchPartitionResponse) -> Plain:
        taken: Plain = {theirs: getattr(p, ours) for theirs, ours, since in _FETCH_ANSWER if version >= since}
        aborted = p.aborted_transactions
        taken["aborted_transactions"] = (
            None
            if aborted is None
            else [{"producer_id": each.producer_id, "first_offset": each.first_offset} for each in aborted]
        )
        taken["records"] = b"".join(p.records)
        return taken

    taken: Plain = {"throttle_time_ms": response.throttle_time_ms}
    if version >= 7:
        taken |= {"error_code": response.error_code, "session_id": response.session_id}
    taken["responses"] = [
        {
            **_named(version, BY_ID_FROM, topic, "topic"),
            "partitions": [partition(p) for p in topic.partitions],
        }
        for topic in response.topics
    ]
    return taken


_BUILDERS: dict[str, Any] = {
    "ProduceRequest": _produce_request,
    "ProduceResponse": _produce_response,
    "FetchRequest": _fetch_request,
    "FetchResponse": _fetch_response,
}
_TAKERS: dict[str, Any] = {
    "ProduceRequest": _take_produce_request,
    "ProduceResponse": _take_produce_response,
    "FetchRequest": _take_fetch_request,
    "FetchResponse": _take_fetch_response,
}
