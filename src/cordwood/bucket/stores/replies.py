"""What a failure of obstore says about a request: decided from its class and the status of the answer.

obstore's exceptions have no fields. Time-outs, refused connections, answers with status 500 and a missing
bucket in a list are all one class, and a 409 is the class of an object that exists. So status and code are
read from the text, in one place. Nothing else of the text is passed on: it has what the store answered,
which may repeat the id of a key, a signature or a token, and URLs that may contain one.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple

from cordwood.errors import (
    BucketError,
    BucketRefused,
    ObjectExists,
    ObjectMissing,
    StoreUnavailable,
    VersionChanged,
)

_STATUS = re.compile(r"Server returned non-2xx status code: (\d{3})\b")
#: Codes are words of at most 32 letters, which no key, token or signature is.
_CODE = re.compile(r"<Code>([A-Za-z]{1,32})</Code>|\(code: ([A-Za-z]{1,32})\)")
#: Where credentials come from, of AWS, Google and Azure.
_CREDENTIALS = re.compile(
    r"Error performing [A-Z]+ \w+://(169\.254\.(169\.254|170\.\d+)|metadata\.google|sts\.|oauth2\.|login\.)"
)
_KIND = re.compile(r"\bkind: (Timeout|Connect)\b")
_REDIRECTED = "Received redirect without LOCATION"
_PLAIN_HTTP = "source: BadScheme"

#: The status of a failure inside an answer with status 200, to a request that deletes several objects.
_STATUS_OF_CODE = {"AccessDenied": 403, "InternalError": 500, "SlowDown": 503}
_NO_BUCKET = {"NoSuchBucket", "ContainerNotFound", "ContainerBeingDeleted", "ContainerDisabled"}
#: Answers with status 400 that are due to the connection.
_AGAIN = {"RequestTimeout", "IncompleteBody", "OperationAborted", "SlowDown"}


class StoreOperation(Enum):
    """What was requested, as words for a sentence."""

    GET = "read"
    CREATE = "create"
    REPLACE = "replace"
    DELETE = "delete"
    LIST = "list"


class StoreReply(NamedTuple):
    """What the text of an exception says: None and "" where it does not."""

    status: int | None
    code: str
    about_credentials: bool
    kind: str
    redirected: bool
    plain_http: bool


def reply_in(text: str) -> StoreReply:
    """Return what *text*, that of an exception of obstore, says about the answer of the store."""
    status, code, kind = _STATUS.search(text), _CODE.search(text), _KIND.search(text)
    word = (code.group(1) or code.group(2)) if code else ""
    return StoreReply(
        int(status.group(1)) if status else _STATUS_OF_CODE.get(word),
        word,
        _CREDENTIALS.search(text) is not None,
        kind.group(1) if kind else "",
        _REDIRECTED in text,
        _PLAIN_HTTP in text,
    )


class FailedRequest(NamedTuple):
    """A request that obstore raised an exception for. ``place`` is the URL of the store."""

    operation: StoreOperation
    key: str
    place: str
    timeout_ms: int

    def __str__(self) -> str:
        return f"{self.place}: {self.operation.value} {self.key or 'keys'}"


def failure_of(request: FailedRequest, error: Exception) -> BucketError:
    """Return what to raise for *error*.

    An outcome is definite only where both the class of the exception and the status say so. Every other
    failure that may pass is StoreUnavailable: what happened is not known.
    """
    from obstore import exceptions

    reply = reply_in(str(error))
    # A source of credentials that answers 404 or 409 is of another class, and so never definite.
    if reply.code not in _NO_BUCKET:
        missing = isinstance(error, FileNotFoundError)
        if missing and request.operation in (StoreOperation.GET, StoreOperation.DELETE):
            return ObjectMissing(request.key)
        if request.operation is StoreOperation.REPLACE and (
            missing or (isinstance(error, exceptions.PreconditionError) and reply.status != 409)
        ):
            return VersionChanged(request.key)
        # S3 answers 409 to creations at the same time, of which none may have taken effect. Azure answers it
        # where there is an object, with a code of its own.
        exists = reply.status in (412, None) or reply.code == "BlobAlreadyExists"
        conflict = (exceptions.AlreadyExistsError, exceptions.PreconditionError)
        if request.operation is StoreOperation.CREATE and isinstance(error, conflict) and exists:
            return ObjectExists(request.key)
    return _refusal(request, reply, error) or _unavailable(request, reply)


def _refusal(request: FailedRequest, reply: StoreReply, error: Exception) -> BucketRefused | None:
    """Return the refusal of a request that no repetition can help; None if one may."""
    from obstore import exceptions

    status, code = reply.status, f" ({reply.code})" if reply.code else ""
    denied = isinstance(error, (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError))
    if reply.about_credentials and status is not None and 400 <= status < 500 and status not in (408, 429):
        return BucketRefused(
            f"{request}: no credentials were found; set them in the environment, for S3 AWS_ACCESS_KEY_ID "
            "and AWS_SECRET_ACCESS_KEY, or give this machine a role"
        )
    if reply.code in _NO_BUCKET or status == 404 or isinstance(error, FileNotFoundError):
        return BucketRefused(f"{request}: there is no such bucket{code}; create it, or correct the URL")
    if denied or status in (401, 403):
        return BucketRefused(
            f"{request}: the store refused the credentials{code}; check them, and that they allow to read, "
            "write, list and delete objects under this prefix"
        )
    if reply.redirected or (status is not None and 300 <= status < 400):
        return BucketRefused(f"{request}: the bucket is elsewhere{code}; set its region or endpoint")
    if reply.plain_http:
        return BucketRefused(
            f"{request}: the endpoint is http://; set AWS_ALLOW_HTTP=true, or use an https:// endpoint"
        )
    if isinstance(error, (exceptions.UnknownConfigurationKeyError, exceptions.InvalidPathError)):
        return BucketRefused(f"{request}: obstore does not accept the key or a setting; check the URL")
    passing = status is None or status >= 500 or status in (408, 409, 412, 425, 429)
    if passing or reply.code in _AGAIN:
        return None
    return BucketRefused(
        f"{request}: the store answered with status {status}{code}; check the endpoint, and that it has "
        "conditional writes"
    )


def _unavailable(request: FailedRequest, reply: StoreReply) -> StoreUnavailable:
    if reply.kind == "Timeout":
        what = f"no answer within {request.timeout_ms} ms"
    elif reply.kind == "Connect":
        what = "no connection"
    elif reply.status is not None:
        what = f"the store answered with status {reply.status}"
    else:
        what = "no complete answer"
    code = f" ({reply.code})" if reply.code else ""
    where = " from the service that has the credentials" if reply.about_credentials else ""
    return StoreUnavailable(f"{request}: {what}{code}{where}")
