"""What other machines can reach is encrypted or refused; metrics with a token; TLS in this process (P4)."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from server.test_serve import address_in, refused, started
from server.test_tls import TlsClient, eventually, settings
from server.test_tls import refused as turned_away
from support.authorities import authority, ca_pem, client_context, named, pem_of, server_pem, signed

import cordwood
from cordwood.config import load_broker_config
from cordwood.errors import ConfigError, InvalidSetting
from cordwood.server.broker import Broker
from cordwood.server.security import check_exposure
from cordwood.server.security.exposure import is_loopback

TOKEN = "correct horse battery staple"


# --- cordwood serve ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "listeners",
    [
        ":9092",
        "0.0.0.0:9092",
        "[::]:9092",
        "192.0.2.1:9092",
        "SASL_PLAINTEXT://:9092",
        "SSL://:1,:2",
        "no.such.invalid:1",
    ],
)
def test_a_plain_listener_that_others_can_reach_is_refused_unless_allowed_by_name(listeners: str) -> None:
    config, _ = load_broker_config({"listeners": listeners}, environment={})
    with pytest.raises(InvalidSetting, match=r"cordwood\.allow\.plaintext=true") as caught:
        check_exposure(config)
    assert caught.value.name == "listeners"
    check_exposure(
        load_broker_config({"listeners": listeners, "cordwood.allow.plaintext": "true"}, environment={})[0]
    )


@pytest.mark.parametrize(
    "listeners",
    ["localhost:1", "127.0.0.1:1,127.3.2.1:1", "[::1]:1", "SSL://:1,SASL_SSL://0.0.0.0:1,localhost:1"],
)
def test_loopback_and_encrypted_listeners_need_no_permission(listeners: str) -> None:
    check_exposure(load_broker_config({"listeners": listeners}, environment={})[0])


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"cordwood.metrics.listen": ":1"}, "cordwood.metrics.listen"),
        (
            {"cordwood.metrics.listen": "http://0.0.0.0:1", "cordwood.metrics.token.file": "/t"},
            "cordwood.metrics.listen",
        ),
        ({"cordwood.metrics.listen": "https://0.0.0.0:1"}, "cordwood.metrics.token.file"),
    ],
)
def test_metrics_that_others_can_reach_need_tls_and_a_token(given: dict[str, str], name: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        check_exposure(load_broker_config(given, environment={})[0])
    assert caught.value.name == name
    whole = {"cordwood.metrics.listen": "https://:1,localhost:2", "cordwood.metrics.token.file": "/t"}
    check_exposure(load_broker_config(whole, environment={})[0])


def test_only_loopback_is_loopback() -> None:
    assert [
        host
        for host in ("localhost", "127.0.0.1", "::1", "", "0.0.0.0", "::", "10.0.0.1")
        if is_loopback(host)
    ] == [
        "localhost",
        "127.0.0.1",
        "::1",
    ]


def test_serve_refuses_before_it_creates_anything(tmp_path: Path) -> None:
    data = tmp_path / "data"
    sentence = refused("--data", str(data), "--listen", "0.0.0.0:0")
    assert sentence.startswith("listeners='PLAINTEXT://0.0.0.0:0': expected SSL or SASL_SSL")
    assert not data.exists()


def test_sighup_loads_certificates_again_and_ends_nothing(tmp_path: Path) -> None:
    config, context = settings(tmp_path), client_context(tmp_path)
    file = tmp_path / "server.pem"
    arguments = [part for name, text in config.items() for part in ("-X", f"{name}={text}")]
    with started("--data", str(tmp_path / "data"), "--listen", "SSL://localhost:0", *arguments) as process:
        address = address_in(process)

        def serial() -> object:
            with TlsClient(address, context) as client:
                certificate = client.tls.getpeercert()
                assert certificate is not None
                return certificate["serialNumber"]

        old = serial()
        before = os.stat(file)
        file.write_text(pem_of(authority().issue_cert("localhost")))
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        process.send_signal(signal.SIGHUP)
        eventually(lambda: serial() != old)
        process.send_signal(signal.SIGTERM)
        process.communicate()
        assert process.returncode == 0


# --- Metrics ----------------------------------------------------------------------------------------


def status_of(url: str, context: ssl.SSLContext, authorization: str | None = None) -> tuple[int, str]:
    request = urllib.request.Request(url, headers={"Authorization": authorization} if authorization else {})
    try:
        with urllib.request.urlopen(request, context=context) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_metrics_are_served_over_tls_to_clients_with_the_token(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(f"{TOKEN}\n")
    config = settings(tmp_path) | {
        "cordwood.metrics.listen": "https://localhost:0",
        "cordwood.metrics.token.file": str(token),
    }
    context = client_context(tmp_path)
    with Broker(config=config) as broker:
        url = broker.metrics_url
        assert url is not None
        assert url.startswith("https://")
        for wrong in (
            None,
            "Bearer",
            "Bearer wrong",
            f"Basic {TOKEN}",
            f"Bearer {TOKEN}x",
            f"Bearer {TOKEN[:-1]}",
        ):
            status, text = status_of(url, context, wrong)
            assert (status, text) == (401, "a bearer token is needed\n")
        status, text = status_of(url, context, f"Bearer {TOKEN}")
        assert status == 200
        assert "cordwood_tls_certificate_expiry_timestamp_seconds{listener=" in text
        base = url.removesuffix("metrics")
        assert status_of(f"{base}healthz", context) == (200, "ok\n")
        eventually(lambda: status_of(f"{base}readyz", context) == (200, "OK\n"))
        assert status_of(f"{base}readyz", context, f"bearer {TOKEN}") == (200, "ready\n")
        token.write_text("another")
        assert status_of(url, context, f"Bearer {TOKEN}")[0] == 401
        assert status_of(url, context, "Bearer another")[0] == 200
        for empty in ("", "\n"):
            token.write_text(empty)
            assert status_of(url, context, "Bearer ")[0] == 401
        token.unlink()
        assert status_of(url, context, "Bearer another")[0] == 401


def test_metrics_have_keys_of_their_own_if_they_are_set(tmp_path: Path) -> None:
    own = tmp_path / "own.pem"
    own.write_text(server_pem("others"))
    config = settings(tmp_path) | {
        "cordwood.metrics.listen": "https://localhost:0",
        "listener.name.metrics.ssl.keystore.location": str(own),
    }
    with Broker(listen="SSL://localhost:0", config=config) as broker:
        assert broker.metrics_url is not None
        assert status_of(broker.metrics_url, client_context(tmp_path, trusted="others"))[0] == 200
        with TlsClient(broker.bootstrap, client_context(tmp_path)) as client:
            client.greet()


# --- Brokers in this process ------------------------------------------------------------------------


def trusting(pem: str | None) -> ssl.SSLContext:
    assert pem is not None
    return ssl.create_default_context(cadata=pem)


def test_a_broker_makes_its_own_certificate_which_its_authority_vouches_for() -> None:
    with cordwood.Broker(tls=True) as broker:
        for host in ("localhost", "127.0.0.1"):
            with TlsClient(broker.bootstrap, trusting(broker.ca_pem), host) as client:
                client.greet()
        path = broker.ca_path
        assert path is not None
        assert Path(path).read_text() == broker.ca_pem
        with cordwood.Broker(tls=True) as another, pytest.raises(ssl.SSLCertVerificationError):
            TlsClient(another.bootstrap, trusting(broker.ca_pem))
    assert not Path(path).exists()


def test_a_broker_takes_files_and_demands_client_certificates_with_an_authority(tmp_path: Path) -> None:
    key, _, chain = server_pem().partition("-----BEGIN CERTIFICATE")
    files = {name: tmp_path / f"{name}.pem" for name in ("certificate", "key", "ca")}
    files["certificate"].write_text(f"-----BEGIN CERTIFICATE{chain}")
    files["key"].write_text(key)
    files["ca"].write_text(ca_pem())
    with cordwood.Broker(tls=files) as broker:
        assert (broker.ca_pem, broker.ca_path) == (None, None)
        with TlsClient(broker.bootstrap, client_context(tmp_path, signed(named(CN="a"))[1])) as client:
            client.greet()
        assert turned_away(broker, client_context(tmp_path))


@pytest.mark.parametrize(
    "tls", [{"cert": "x"}, {"key": "x"}, {}, {"certificate": "/no/such/file", "key": "/none"}]
)
def test_files_that_are_not_what_is_expected_are_refused(tls: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        cordwood.Broker(tls=tls).close()


def test_a_broker_on_an_event_loop_has_tls_as_well() -> None:
    async def serve() -> str | None:
        async with cordwood.aio.Broker(tls=True) as broker:
            context = trusting(broker.ca_pem)
            host, _, port = broker.bootstrap.rpartition(":")
            _, writer = await asyncio.open_connection(
                host, int(port), ssl=context, server_hostname="localhost"
            )
            version = writer.get_extra_info("ssl_object").version()
            writer.close()
            await writer.wait_closed()
            return str(version)

    assert asyncio.run(serve()) == "TLSv1.3"
