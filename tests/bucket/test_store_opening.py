"""Opening a store by its URL."""

from __future__ import annotations

import sys

import pytest
from support.bucket_servers import SECRET, make_bucket

from cordwood.bucket.stores import RemoteStore, open_store
from cordwood.errors import BucketRefused


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        (
            "file:///var/lib/log",
            "a file: URL is no store for a log, because it has no conditional writes",
        ),
        ("memory:///", "a memory: URL is no store"),
        ("https://bucket.s3.amazonaws.com/p", "begins with s3://, gs:// or az://"),
        ("bucket/prefix", "begins with s3://"),
        ("s3://", "no valid name of a bucket: s3://bucket/prefix does"),
        ("s3:///prefix", "no valid name of a bucket"),
        ("s3://bucket:80/prefix", "no valid name"),
        ("s3://[", "s3://bucket/prefix is"),
        (f"s3://AKIA:{SECRET.replace('/', '')}@bucket/p", "credentials come from the environment"),
        (f"s3://bucket/p?secret={SECRET}", "has only a bucket and a prefix"),
        (f"s3://bucket/p#{SECRET}", "has only a bucket and a prefix"),
        ("s3://bucket/a//b", "between slashes"),
        ("s3://bucket/a/../b", "between slashes"),
        ("s3://bucket/a b", "between slashes"),
    ],
)
def test_a_url_of_no_store_is_refused_and_not_repeated(url: str, sentence: str) -> None:
    with pytest.raises(BucketRefused) as raised:
        open_store(url)
    assert sentence in str(raised.value)
    assert SECRET.replace("/", "") not in str(raised.value).replace("/", "")


def test_endpoint_and_region_are_for_s3() -> None:
    with pytest.raises(BucketRefused, match="for s3:// only"):
        open_store("gs://bucket", region="us-east-1")
    with pytest.raises(BucketRefused, match="the endpoint is http://; allow http"):
        open_store("s3://bucket", endpoint="http://localhost:9000")


@pytest.mark.parametrize(
    "endpoint",
    ["::bad::", "localhost:9000", "ftp://host", "https://", "http://host:0x", f"https://a:{SECRET}@host"],
)
def test_an_endpoint_that_is_no_url_is_refused(endpoint: str) -> None:
    with pytest.raises(BucketRefused, match="the endpoint is no URL such as") as raised:
        open_store("s3://bucket", endpoint=endpoint, allow_http=True)
    assert SECRET not in str(raised.value)


def test_http_in_the_environment_is_refused_too(
    s3_environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(BucketRefused, match="the endpoint is http://; set AWS_ALLOW_HTTP=true"):
        open_store("s3://bucket").get("k")


def test_without_obstore_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(BucketRefused) as raised:
        open_store("s3://bucket/p")
    assert str(raised.value) == (
        "s3://bucket/p: object storage needs the package obstore: pip install 'cordwood[bucket]'"
    )


def test_the_stores_of_google_and_azure_open_without_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    assert repr(open_store("gs://bucket/p/")) == "RemoteStore('gs://bucket/p')"
    with pytest.raises(BucketRefused, match="set AZURE_STORAGE_ACCOUNT_NAME"):
        open_store("az://container/p")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", f"!{SECRET}!")
    with pytest.raises(BucketRefused) as raised:
        open_store("az://container/p")
    assert SECRET not in str(raised.value)
    assert raised.value.__context__ is None
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "c2VjcmV0")
    assert repr(open_store("az://container/p")) == "RemoteStore('az://container/p')"


def test_keys_are_under_the_prefix_and_no_other_prefix_has_them(moto_url: str, s3_environment: None) -> None:
    make_bucket(moto_url, "prefixes")

    def at(url: str) -> RemoteStore:
        return open_store(url, endpoint=moto_url, allow_http=True, timeout_ms=120_000)

    prefix = "a.b/c_d=e+f@g:h,i-j"
    store = at(f"s3://prefixes/{prefix}/")
    store.create("w/1", b"1")
    assert at("s3://prefixes").list("") == [f"{prefix}/w/1"]
    assert at("s3://prefixes/a.b").list("") == [f"{prefix.partition('/')[2]}/w/1"]
    assert store.list("") == store.list("w/") == ["w/1"]
    at("s3://prefixes/a.b/c").create("w/1", b"2")
    assert store.get("w/1").data == b"1"
    assert store.list("w/") == ["w/1"]


def test_a_bucket_that_does_not_exist_is_refused(moto_url: str, s3_environment: None) -> None:
    store = open_store("s3://absent-bucket/p", endpoint=moto_url, allow_http=True, timeout_ms=120_000)
    for request in (
        lambda: store.get("k"),
        lambda: store.create("k", b""),
        lambda: store.replace("k", b"", '{"e_tag":"a"}'),
        lambda: store.list(""),
        lambda: store.delete("k"),
    ):
        with pytest.raises(BucketRefused, match="there is no such bucket"):
            request()
