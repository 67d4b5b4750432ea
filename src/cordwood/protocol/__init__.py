"""The Kafka wire protocol, without I/O: bytes to requests, responses to bytes."""

from cordwood.protocol.apis import (
    ApiKey,
    Request,
    api_versions_response,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    supported_versions,
)
from cordwood.protocol.error_codes import ErrorCode
from cordwood.protocol.frames import SMALL, Inbox
from cordwood.protocol.wire import NULL_ID, WireBytes

__all__ = [
    "NULL_ID",
    "SMALL",
    "ApiKey",
    "ErrorCode",
    "Inbox",
    "Request",
    "WireBytes",
    "api_versions_response",
    "decode_request",
    "decode_response",
    "encode_request",
    "encode_response",
    "failing",
    "supported_versions",
]
