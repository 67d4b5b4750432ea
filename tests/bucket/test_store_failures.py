"""What each failure of a store becomes, and that no sentence has a secret."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest
from obstore.exceptions import GenericError
from support.bucket_servers import KEY_ID, SECRET, TOKEN, HttpAnswer, ScriptedServer, silent_server
from support.patience import in_time

from cordwood.bucket import ObjectStore
from cordwood.bucket.stores import RemoteStore, open_store
from cordwood.bucket.stores.replies import FailedRequest, StoreOperation, failure_of
from cordwood.errors import (
    BucketError,
    BucketRefused,
    ObjectExists,
    ObjectMissing,
    StoreUnavailable,
    VersionChanged,
)

pytestmark = pytest.mark.usefixtures("s3_environment")

VERSION = '{"e_tag":"\\"a\\""}'
REQUESTS: dict[str, Callable[[ObjectStore], object]] = {
    "get": lambda store: store.get("w/1"),
    "get_range": lambda store: store.get_range("w/1", 3, 5),
    "create": lambda store: store.create("w/1", b"x"),
    "replace": lambda store: store.replace("w/1", b"x", VERSION),
    "delete": lambda store: store.delete("w/1"),
    "list": lambda store: store.list("w/"),
}
#: What S3 says where a signature is wrong: it repeats most of the request.
_BODY = (
    f"<Error><Code>{{}}</Code><Message>token {TOKEN}</Message><AWSAccessKeyId>{KEY_ID}</AWSAccessKeyId>"
    f"<StringToSign>AWS4-HMAC-SHA256 {SECRET}</StringToSign><SignatureProvided>0f1e2d3c</SignatureProvided>"
    "</Error>"
)


def error_of(status: int, code: str, cut: bool = False) -> HttpAnswer:
    return HttpAnswer(status, _BODY.format(code), cut=cut)


@pytest.fixture
def store(scripted: ScriptedServer) -> RemoteStore:
    return opened(scripted.url)


def opened(url: str, timeout_ms: int = 60_000) -> RemoteStore:
    return open_store("s3://bucket/log", endpoint=url, allow_http=True, timeout_ms=timeout_ms)


def failure(store: ObjectStore, request: str) -> BucketError:
    with pytest.raises(BucketError) as raised:
        REQUESTS[request](store)
    # A logger that prints causes must find none.
    assert raised.value.__cause__ is None
    assert raised.value.__context__ is None
    sentence = str(raised.value)
    for secret in (KEY_ID, SECRET, TOKEN, "0f1e2d3c", "StringToSign", "Debug source"):
        assert secret not in sentence
    assert "\n" not in sentence
    return raised.value


@pytest.mark.parametrize("request_name", REQUESTS)
@pytest.mark.parametrize(
    "answer",
    [
        error_of(500, "InternalError"),
        error_of(502, ""),
        error_of(503, "SlowDown"),
        error_of(504, ""),
        error_of(429, "TooManyRequests"),
        error_of(408, ""),
        error_of(409, "ConditionalRequestConflict"),
        error_of(409, "OperationAborted"),
        error_of(400, "RequestTimeout"),
        error_of(500, "InternalError", cut=True),
    ],
    ids=lambda answer: f"{answer.status}-{'cut' if answer.cut else ''}{answer.body[13:30]}",
)
def test_the_outcome_is_unknown_where_the_store_may_answer_again(
    scripted: ScriptedServer, store: RemoteStore, answer: HttpAnswer, request_name: str
) -> None:
    """Also a 409, which obstore takes for an object that exists: none may be there."""
    scripted.answer = answer
    assert type(failure(store, request_name)) is StoreUnavailable
    assert len(scripted.seen) == 1, "nothing is repeated here"


@pytest.mark.parametrize("request_name", REQUESTS)
@pytest.mark.parametrize(
    ("answer", "advice"),
    [
        (error_of(403, "SignatureDoesNotMatch"), "check them"),
        (error_of(403, "AccessDenied"), "read, write, list and delete"),
        (error_of(401, ""), "refused the credentials"),
        (error_of(404, "NoSuchBucket"), "no such bucket (NoSuchBucket); create it"),
        (error_of(400, "ExpiredToken"), "status 400 (ExpiredToken)"),
        (error_of(405, "MethodNotAllowed"), "check the endpoint"),
        (error_of(301, "PermanentRedirect"), "set its region"),
    ],
    ids=lambda each: f"{each.status}" if isinstance(each, HttpAnswer) else "",
)
def test_a_store_that_never_will_is_refused_with_what_to_do(
    scripted: ScriptedServer, store: RemoteStore, answer: HttpAnswer, advice: str, request_name: str
) -> None:
    scripted.answer = answer
    refused = failure(store, request_name)
    assert type(refused) is BucketRefused
    assert advice in str(refused)
    assert "s3://bucket/log" in str(refused)


@pytest.mark.parametrize(
    ("request_name", "answer", "expected"),
    [
        ("get", error_of(404, "NoSuchKey"), ObjectMissing),
        ("get", HttpAnswer(404), ObjectMissing),
        ("get_range", error_of(404, "NoSuchKey"), ObjectMissing),
        ("create", error_of(412, "PreconditionFailed"), ObjectExists),
        ("create", error_of(409, "BlobAlreadyExists"), ObjectExists),
        ("create", error_of(404, "NoSuchKey"), BucketRefused),
        ("replace", error_of(412, "PreconditionFailed"), VersionChanged),
        ("replace", error_of(404, "NoSuchKey"), VersionChanged),
        ("get", error_of(412, "PreconditionFailed"), StoreUnavailable),
    ],
)
def test_a_definite_answer_is_told_exactly(
    scripted: ScriptedServer,
    store: RemoteStore,
    request_name: str,
    answer: HttpAnswer,
    expected: type[BucketError],
) -> None:
    scripted.answer = answer
    assert type(failure(store, request_name)) is expected


def test_a_deletion_that_is_refused_within_a_successful_answer_is_refused(
    scripted: ScriptedServer, store: RemoteStore
) -> None:
    """Several objects are deleted with one request, whose status is 200 whatever becomes of each."""
    content = f"<Error><Key>log/w/1</Key><Code>{{}}</Code><Message>{KEY_ID}</Message></Error>"
    scripted.answer = HttpAnswer(200, f"<DeleteResult>{content.format('AccessDenied')}</DeleteResult>")
    assert type(failure(store, "delete")) is BucketRefused
    scripted.answer = HttpAnswer(200, f"<DeleteResult>{content.format('InternalError')}</DeleteResult>")
    assert type(failure(store, "delete")) is StoreUnavailable


def test_an_object_that_arrives_in_part_is_not_returned(scripted: ScriptedServer, store: RemoteStore) -> None:
    headers = {"etag": '"a"', "last-modified": "Thu, 19 Nov 2026 00:00:00 GMT"}
    scripted.answer = HttpAnswer(200, "half of it", headers, cut=True)
    assert type(failure(store, "get")) is StoreUnavailable


def test_a_connection_that_is_refused_is_no_answer() -> None:
    with silent_server() as url:
        pass
    store = opened(url)
    for request in REQUESTS:
        unavailable = failure(store, request)
        assert type(unavailable) is StoreUnavailable
        assert "no connection" in str(unavailable)


@pytest.mark.parametrize("request_name", REQUESTS)
def test_a_store_that_never_answers_is_given_up_at_the_deadline(request_name: str) -> None:
    with silent_server() as url:
        store = opened(url, timeout_ms=200)
        started = time.monotonic()
        unavailable = failure(store, request_name)
        taken = time.monotonic() - started
    assert type(unavailable) is StoreUnavailable
    assert "no answer within 200 ms" in str(unavailable)
    assert taken >= 0.19
    assert in_time(taken, 2.0)


def test_what_the_source_of_credentials_says_is_not_about_an_object(
    scripted: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers 404 where a machine has no role, which does not mean that there is no log in the bucket."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", scripted.url)
    store = opened(scripted.url)
    scripted.answer = HttpAnswer(404)
    for request in REQUESTS:
        assert type(failure(store, request)) is BucketRefused
    assert not any(each.path.startswith("/bucket") for each in scripted.seen)


@pytest.mark.parametrize(
    ("status", "expected", "sentence"),
    [
        (403, BucketRefused, "no credentials were found; set them in the environment"),
        (404, BucketRefused, "no credentials were found"),
        (429, StoreUnavailable, "status 429 from the service that has the credentials"),
        (503, StoreUnavailable, "status 503 from the service that has the credentials"),
    ],
)
def test_missing_credentials_are_named_as_such(
    status: int, expected: type[BucketError], sentence: str
) -> None:
    """As text of obstore, because its source of credentials has an address that tests must not use."""
    text = (
        "Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token in 8ms - "
        f"Server returned non-2xx status code: {status} Word: {TOKEN}"
    )
    request = FailedRequest(StoreOperation.GET, "w/1", "s3://bucket/log", 1000)
    found = failure_of(request, GenericError(text))
    assert type(found) is expected
    assert str(found).startswith("s3://bucket/log: read w/1: ")
    assert sentence in str(found)
    assert TOKEN not in str(found)


def test_requests_are_conditional_signed_and_under_the_prefix(
    scripted: ScriptedServer, store: RemoteStore
) -> None:
    scripted.answer = HttpAnswer(200, headers={"etag": '"b"'})
    assert store.create("w/1", b"x" * (16 << 20)) == store.replace("w/1", b"y", VERSION)
    created = scripted.seen[0]
    assert (created.method, created.path) == ("PUT", "/bucket/log/w/1")
    # A multipart upload would be unconditional, whatever the size.
    assert len(created.body) == 16 << 20
    heads = [{name.lower(): value for name, value in each.headers.items()} for each in scripted.seen]
    assert heads[0]["if-none-match"] == "*"
    assert heads[1]["if-match"] == '"a"'
    assert re.match(f"AWS4-HMAC-SHA256 Credential={KEY_ID}/", heads[0]["authorization"])
    assert SECRET not in str(heads)


def test_the_environment_cannot_switch_conditions_off(
    scripted: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_CONDITIONAL_PUT", "disabled")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    scripted.answer = HttpAnswer(200, headers={"etag": '"b"'})
    opened(scripted.url).create("w/1", b"x")
    assert [each.path for each in scripted.seen] == ["/bucket/log/w/1"]


def test_a_list_reads_one_page_from_a_key_on(scripted: ScriptedServer, store: RemoteStore) -> None:
    """Else following a log would list all its pieces again and again."""
    found = "".join(
        f"<Contents><Key>log/w/{number}</Key><LastModified>2026-11-19T00:00:00.000Z</LastModified>"
        f'<ETag>"a"</ETag><Size>1</Size></Contents>'
        for number in range(5000, 6000)
    )
    scripted.answer = HttpAnswer(
        200,
        "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>next</NextContinuationToken>"
        f"{found}</ListBucketResult>",
    )
    assert store.list("w/", "w/4999") == [f"w/{number}" for number in range(5000, 6000)]
    assert len(scripted.seen) == 1
    assert "start-after=log%2Fw%2F4999" in scripted.seen[0].path
