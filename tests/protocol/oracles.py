"""Two independent implementations of the protocol, behind one small interface each.

Both take and give plain messages (see ``definitions``) and whole frames without their length. They are
given nothing but valid bytes: kio aborts the process on a hostile count.
"""

from __future__ import annotations

import dataclasses
import datetime
import io
import uuid
from typing import Any, Protocol, get_args

import kafka.protocol.admin
import kafka.protocol.consumer
import kafka.protocol.metadata
import kafka.protocol.producer
import kafka.protocol.sasl
from kio.index import UnknownAPIKey, UnknownEntity, load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i32Timedelta, i64Timedelta
from protocol.definitions import CLIENT_ID, CORRELATION_ID, Case, KafkaField, Plain, default_of, kafka_fields

Fields = tuple[KafkaField, ...]


class Oracle(Protocol):
    """Someone else's idea of the protocol."""

    name: str

    def supports(self, case: Case) -> bool: ...

    def encode(self, case: Case, message: Plain) -> bytes: ...

    def decode(self, case: Case, frame: bytes) -> Plain: ...


class KafkaPython:
    """kafka-python: interprets Kafka's JSON definitions at run time."""

    name = "kafka-python"
    _MODULES = (
        kafka.protocol.admin,
        kafka.protocol.consumer,
        kafka.protocol.metadata,
        kafka.protocol.producer,
        kafka.protocol.sasl,
    )

    def _class(self, case: Case) -> Any:
        return next((getattr(m, case.name) for m in self._MODULES if hasattr(m, case.name)), None)

    def supports(self, case: Case) -> bool:
        cls = self._class(case)
        return cls is not None and case.version <= cls.max_version

    def encode(self, case: Case, message: Plain) -> bytes:
        cls = self._class(case)
        made = self._build(cls, cls._struct, kafka_fields(case.name), message, case.version)
        if case.direction == "request":
            made.with_header(correlation_id=CORRELATION_ID, client_id=CLIENT_ID)
        else:
            made.with_header(correlation_id=CORRELATION_ID)
        encoded: bytes = made.encode(header=True)
        return bytes(encoded)

    def _build(self, cls: Any, struct: Any, kafka: Fields, message: Plain, version: int) -> Any:
        # Some fields go by other names there, but all keep their place.
        values = {
            field.name: self._give(field, each, message[each.name], version)
            for each, field in zip(kafka, struct.fields.values(), strict=True)
            if version in each.versions
        }
        return cls(version=version, **values)

    def _give(self, field: Any, each: KafkaField, value: Any, version: int) -> Any:
        if value is None:
            return None
        if field.is_struct_array():
            return [self._build(field.data_class, field, each.fields, v, version) for v in value]
        if field.is_struct():
            return self._build(field.data_class, field, each.fields, value, version)
        if field.type_str == "uuid":
            return uuid.UUID(bytes=value)
        if field.type_str == "bitfield":
            return {bit for bit in range(32) if value & 1 << bit}
        return value

    def decode(self, case: Case, frame: bytes) -> Plain:
        cls = self._class(case)
        made = cls.decode(frame, version=case.version, header=True)
        assert made.header.correlation_id == CORRELATION_ID
        if case.direction == "request":
            assert made.header.client_id == CLIENT_ID
        return self._take_struct(cls._struct, kafka_fields(case.name), made, case.version)

    def _take_struct(self, struct: Any, kafka: Fields, made: Any, version: int) -> Plain:
        return {
            each.name: self._take(field, each, getattr(made, field.name), version)
            for each, field in zip(kafka, struct.fields.values(), strict=True)
            if version in each.versions
        }

    def _take(self, field: Any, each: KafkaField, value: Any, version: int) -> Any:
        if field.type_str == "uuid":
            return bytes(16) if value is None else value.bytes
        if field.type_str == "bitfield":
            bits = {31} if value is None else value
            return sum(1 << bit for bit in bits if bit < 31) - (2**31 if 31 in bits else 0)
        if value is None:
            return None if each.nullable_in(version) else default_of(each)
        if field.is_struct_array():
            return [self._take_struct(field, each.fields, v, version) for v in value]
        if field.is_struct():
            return self._take_struct(field, each.fields, value, version)
        return list(value) if field.is_array() else value


class Kio:
    """kio: a class for each version of each message, read by native code."""

    name = "kio"

    def _class(self, case: Case) -> Any:
        load = load_request_schema if case.direction == "request" else load_response_schema
        return load(int(case.key), case.version)

    def supports(self, case: Case) -> bool:
        try:
            self._class(case)
        except (UnknownAPIKey, UnknownEntity):
            return False
        return True

    def encode(self, case: Case, message: Plain) -> bytes:
        cls = self._class(case)
        header_cls = cls.__header_schema__
        if case.direction == "request":
            header = header_cls(
                request_api_key=int(case.key),
                request_api_version=case.version,
                correlation_id=CORRELATION_ID,
                client_id=CLIENT_ID,
            )
        else:
            header = header_cls(correlation_id=CORRELATION_ID)
        out = io.BytesIO()
        entity_writer(header_cls)(out, header)
        entity_writer(cls)(out, self._build(cls, message))
        return out.getvalue()

    def _build(self, cls: Any, message: Plain) -> Any:
        # Names of times lose their unit there, and words are told apart differently.
        fields = {_squeezed(each.name): each for each in dataclasses.fields(cls)}
        values = {}
        for name, value in message.items():
            field = fields.get(_squeezed(name)) or fields[_squeezed(name.removesuffix("_ms"))]
            values[field.name] = self._give(field, value)
        return cls(**values)

    def _give(self, field: Any, value: Any) -> Any:
        nested = _nested(field.type)
        if value is None:
            return None
        if isinstance(value, list):
            convert = self._build if nested else lambda _, each: self._scalar(field, each)
            return tuple(convert(nested, each) for each in value)
        return self._build(nested, value) if nested else self._scalar(field, value)

    def _scalar(self, field: Any, value: Any) -> Any:
        match field.metadata["kafka_type"]:
            case "error_code":
                return KioErrorCode(value)
            case "timedelta_i32":
                return i32Timedelta.parse(datetime.timedelta(milliseconds=value))
            case "timedelta_i64":
                return i64Timedelta.parse(datetime.timedelta(milliseconds=value))
            case "datetime_i64":
                epoch = datetime.datetime.fromtimestamp(0, datetime.UTC)
                return None if value == -1 else epoch + datetime.timedelta(milliseconds=value)
            case "uuid":
                return None if value == bytes(16) else uuid.UUID(bytes=value)
        return value

    def decode(self, case: Case, frame: bytes) -> Plain:
        cls = self._class(case)
        header, size = entity_reader(cls.__header_schema__)(frame, 0)
        assert header.correlation_id == CORRELATION_ID
        if case.direction == "request":
            assert (header.request_api_key, header.request_api_version) == (case.key, case.version)
            assert header.client_id == CLIENT_ID
        made, body_size = entity_reader(cls)(frame, size)
        assert size + body_size == len(frame)
        return self._take_struct(made, kafka_fields(case.name), case.version)

    def _take_struct(self, made: Any, kafka: Fields, version: int) -> Plain:
        fields = {_squeezed(each.name): each for each in dataclasses.fields(made)}
        taken = {}
        for each in kafka:
            if version in each.versions:
                name = _squeezed(each.name)
                field = fields.pop(name, None) or fields.pop(name.removesuffix("ms"))
                taken[each.name] = self._take(field, each, getattr(made, field.name), version)
        assert not fields, f"{type(made).__name__} has {sorted(fields)} beside"
        return taken

    def _take(self, field: Any, each: KafkaField, value: Any, version: int) -> Any:
        if isinstance(value, tuple):
            return [self._take(field, each, v, version) for v in value]
        if dataclasses.is_dataclass(value):
            return self._take_struct(value, each.fields, version)
        kind = field.metadata.get("kafka_type")
        if value is None:
            return bytes(16) if kind == "uuid" else -1 if kind == "datetime_i64" else None
        match kind:
            case "error_code":
                return int(value)
            case "timedelta_i32" | "timedelta_i64":
                return round(value.total_seconds() * 1000)
            case "datetime_i64":
                return round(value.timestamp() * 1000)
            case "uuid":
                return value.bytes
        return value


def _squeezed(name: str) -> str:
    return name.replace("_", "")


def _nested(annotation: Any) -> Any:
    """Return the dataclass that an annotation mentions, if it does."""
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        return annotation
    return next(filter(None, map(_nested, get_args(annotation))), None)


ORACLES: tuple[Oracle, ...] = (KafkaPython(), Kio())
