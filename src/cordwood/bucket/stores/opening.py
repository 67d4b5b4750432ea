"""Opening a store by its URL. Only here and in `replies` obstore is imported, when a URL is opened."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from cordwood.bucket.stores.remote import RemoteStore
from cordwood.config import store_without_tls
from cordwood.errors import BucketRefused

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig, S3Config

    from cordwood.bucket.stores.remote import Connection

#: How long a request may take by default.
TIMEOUT_MS = 10_000
_CONNECT_MS_MAX = 5_000
_PREFIX_PART = re.compile(r"[A-Za-z0-9_=+@:,-][A-Za-z0-9_.=+@:,-]*")
#: Buckets of S3 Express, whose names end like this, list keys in no order.
_EXPRESS = "--x-s3"
#: What is missing where a connection cannot be made.
_ADVICE = {
    "s3": "check the AWS_ variables in the environment",
    "gs": "check GOOGLE_APPLICATION_CREDENTIALS and the other GOOGLE_ variables in the environment",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME, and the credentials, in the environment",
}


class StoreAddress(NamedTuple):
    """The parts of a URL. The prefix neither begins nor ends with a slash."""

    scheme: str
    bucket: str
    prefix: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}" + (f"/{self.prefix}" if self.prefix else "")


def open_store(
    url: str,
    *,
    endpoint: str | None = None,
    region: str | None = None,
    allow_http: bool = False,
    timeout_ms: int = TIMEOUT_MS,
) -> RemoteStore:
    """Return the store at *url*: s3://bucket/prefix, gs://bucket/prefix or az://container/prefix.

    Makes no request. A request that takes longer than *timeout_ms* fails, and none is repeated; looking for
    credentials may come before it. *endpoint* and *region* are for S3. Credentials, and what is not given
    here, come from the environment variables that each store has: obstore reads those that begin with AWS_,
    GOOGLE_ and AZURE_, and otherwise asks the machine for its role. It does not read AWS profiles.

    Raises:
        BucketRefused: If the URL is none of these, obstore is not installed, or it finds no account.
    """
    assert timeout_ms > 0
    address = parse_address(url)
    if address.scheme != "s3" and (endpoint is not None or region is not None):
        raise BucketRefused(f"{address}: endpoint and region are for s3:// only")
    if endpoint is not None:
        _check_endpoint(address, endpoint, allow_http)
    try:
        import obstore  # noqa: F401
    except ImportError:
        raise BucketRefused(
            f"{address}: object storage needs the package obstore: pip install 'cordwood[bucket]'"
        ) from None
    connection = _connect(address, endpoint, region, allow_http, timeout_ms)
    express = address.scheme == "s3" and address.bucket.endswith(_EXPRESS)
    return RemoteStore(connection, str(address), timeout_ms, lists_in_order=not express)


def store_at(url: str) -> RemoteStore:
    """Return the store at *url* as the environment says; see `open_store`."""
    return open_store(url, allow_http=store_without_tls())


def parse_address(url: str) -> StoreAddress:
    """Return the parts of *url*. Raises BucketRefused with a sentence that does not repeat the URL."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise BucketRefused("the URL of the bucket is not one: s3://bucket/prefix is") from None
    if parts.scheme in ("file", "memory"):
        raise BucketRefused(
            f"a {parts.scheme}: URL is no store for a log, because it has no conditional writes; "
            "use s3://, gs:// or az://"
        )
    if parts.scheme not in _ADVICE:
        raise BucketRefused("the URL of a bucket begins with s3://, gs:// or az://")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise BucketRefused(
            "the URL of a bucket has only a bucket and a prefix; credentials come from the environment"
        )
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", parts.netloc):
        raise BucketRefused(f"the URL has no valid name of a bucket: {parts.scheme}://bucket/prefix does")
    prefix = parts.path.strip("/")
    if prefix and not all(_PREFIX_PART.fullmatch(part) for part in prefix.split("/")):
        raise BucketRefused(
            "the prefix in the URL of a bucket may have letters, digits and _ . = + @ : , - between slashes"
        )
    return StoreAddress(parts.scheme, parts.netloc, prefix)


def _check_endpoint(address: StoreAddress, endpoint: str, allow_http: bool) -> None:
    """Raise BucketRefused if requests to *endpoint* would fail; obstore panics where it is no URL."""
    try:
        parts = urlsplit(endpoint)
        valid = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        valid = False
    if not valid or parts.scheme not in ("http", "https") or "@" in parts.netloc or parts.query:
        raise BucketRefused(f"{address}: the endpoint is no URL such as https://host:port")
    if parts.scheme == "http" and not allow_http:
        raise BucketRefused(f"{address}: the endpoint is http://; allow http, or use an https:// endpoint")


def _connect(
    address: StoreAddress, endpoint: str | None, region: str | None, allow_http: bool, timeout_ms: int
) -> Connection:
    from obstore.store import AzureStore, GCSStore, S3Store

    client: ClientConfig = {
        "timeout": f"{timeout_ms}ms",
        "connect_timeout": f"{min(timeout_ms, _CONNECT_MS_MAX)}ms",
    }
    if allow_http:
        client["allow_http"] = True
    retries: RetryConfig = {"max_retries": 0}
    prefix = address.prefix or None
    try:
        if address.scheme == "gs":
            return GCSStore(address.bucket, prefix=prefix, client_options=client, retry_config=retries)
        if address.scheme == "az":
            return AzureStore(address.bucket, prefix=prefix, client_options=client, retry_config=retries)
        # Given here, it counts whatever AWS_CONDITIONAL_PUT says.
        config: S3Config = {"conditional_put": "etag"}
        if endpoint is not None:
            config["endpoint"] = endpoint
        if region is not None:
            config["region"] = region
        return S3Store(
            address.bucket, prefix=prefix, config=config, client_options=client, retry_config=retries
        )
    except Exception as error:
        # Its text may have what the variables hold.
        kind = type(error).__name__
    raise BucketRefused(f"{address}: obstore cannot open it ({kind}); {_ADVICE[address.scheme]}")
