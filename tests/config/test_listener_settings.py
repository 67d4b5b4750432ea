"""Settings of one listener beside those of all, and secrets, which nothing shows."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from cordwood.config import BrokerConfig, Secret, load_broker_config, only_static
from cordwood.errors import ConfigError, InvalidSetting, UnknownSetting
from cordwood.server.handlers.config_descriptions import broker_settings

TWO = {"listeners": "INSIDE://h:1,Outside://h:2", "cordwood.listener.Outside.org": "7"}
SECRET = "hunter2"


def load(properties: Mapping[str, str]) -> BrokerConfig:
    return load_broker_config(properties, environment={})[0]


def test_a_listener_has_its_own_settings_and_else_those_of_all() -> None:
    config = load(
        {
            **TWO,
            "ssl.client.auth": "requested",
            "ssl.truststore.location": "/all.pem",
            "listener.name.outside.ssl.client.auth": "required",
        }
    )
    inside, outside = config.listener("INSIDE"), config.listener("Outside")
    assert (inside.client_auth, inside.truststore_location) == ("requested", "/all.pem")
    assert (outside.client_auth, outside.truststore_location) == ("required", "/all.pem")
    assert outside.explicit == {"ssl.client.auth"}


@pytest.mark.parametrize(
    "name",
    [
        "listener.name.outsid.ssl.client.auth",
        "listener.name.ssl.client.auth",
        "listener.name.x.ssl.client.auth",
    ],
)
def test_settings_of_a_listener_that_does_not_exist_are_refused(name: str) -> None:
    """A misspelt name must not leave the listener without them."""
    with pytest.raises(ConfigError):
        load({**TWO, name: "required"})


@pytest.mark.parametrize(
    "name",
    ["ssl.clientauth", "listener.name.outside.ssl.client.aut", "ssl.keystore.locaton"],
)
def test_a_misspelt_setting_of_tls_is_unknown_and_not_ignored(name: str) -> None:
    with pytest.raises(UnknownSetting):
        load({**TWO, name: "required"})


def test_a_bad_value_is_reported_under_the_full_name() -> None:
    with pytest.raises(InvalidSetting) as refused:
        load({**TWO, "listener.name.outside.ssl.client.auth": "maybe"})
    assert refused.value.name == "listener.name.outside.ssl.client.auth"
    with pytest.raises(InvalidSetting):
        load({"ssl.enabled.protocols": "TLSv1.1,TLSv1.2"})


def test_a_store_of_java_is_warned_about() -> None:
    _, warnings = load_broker_config({"ssl.keystore.type": "JKS"}, environment={})
    assert warnings == ["ssl.keystore.type=JKS has no effect: expected PEM."]
    _, warnings = load_broker_config(
        {**TWO, "listener.name.outside.ssl.keystore.type": "JKS"}, environment={}
    )
    assert warnings == ["listener.name.outside.ssl.keystore.type=JKS has no effect: expected PEM."]


def test_settings_of_kafkas_controller_listener_do_no_harm() -> None:
    load({**TWO, "listener.name.controller.ssl.client.auth": "required"})


def test_no_text_shows_a_secret() -> None:
    config = load({**TWO, "ssl.key.password": SECRET, "listener.name.outside.ssl.keystore.key": SECRET})
    assert config.listener("INSIDE").key_password == Secret(SECRET)
    assert config.listener("Outside").key == Secret(SECRET)
    described = broker_settings(only_static(config))
    shown = {each.name: each for each in described}
    for name in ("ssl.key.password", "listener.name.outside.ssl.keystore.key"):
        assert (shown[name].value, shown[name].is_sensitive) == (None, True)
    assert SECRET not in repr(config) + str(config) + repr(described)
    with pytest.raises(InvalidSetting) as refused:
        load({"ssl.key.password": 123456})  # type: ignore[dict-item]
    assert "123456" not in str(refused.value)


def test_an_org_sees_no_settings_of_the_listeners_of_others() -> None:
    config = load({**TWO, "listener.name.inside.ssl.client.auth": "none", "ssl.client.auth": "required"})
    assert set(config.seen_by(0).listener_configs) == {"INSIDE"}
    assert set(config.seen_by(7).listener_configs) == set()
