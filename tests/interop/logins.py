"""How a client logs in, in the words of Java's clients, of librdkafka, and of the programs here."""

from __future__ import annotations

from typing import Any

from support import secured
from support.secure_clients import Login


def java_settings(login: Login) -> dict[str, str]:
    """Return the settings of Kafka's Java client, for a token with the address of a file that has it."""
    settings = secured.java_settings(login, login.ca.parent)
    if login.mechanism == "OAUTHBEARER":
        settings["sasl.login.callback.handler.class"] = (
            "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
        )
    return settings


def librdkafka_settings(login: Login) -> dict[str, str]:
    """Return the settings of a client on librdkafka, which takes a token from a callback only."""
    settings = {"security.protocol": login.protocol, "ssl.ca.location": str(login.ca)}
    if login.own is not None:
        settings["ssl.certificate.location"] = str(login.own.certificate)
        settings["ssl.key.location"] = str(login.own.key)
    if login.mechanism is not None:
        settings["sasl.mechanism"] = login.mechanism
    if login.mechanism not in (None, "OAUTHBEARER"):
        settings |= {"sasl.username": login.user, "sasl.password": login.password}
    return settings


def planned(login: Login) -> dict[str, Any]:
    """Return what a program finds in its plan: the settings of Java's, and plain names for the others."""
    own = login.own
    return {
        "settings": java_settings(login),
        "login": {
            "ca": str(login.ca),
            "certificate": "" if own is None else str(own.certificate),
            "key": "" if own is None else str(own.key),
            "mechanism": login.mechanism or "",
            "user": login.user,
            "password": login.password,
            "token": login.token,
        },
    }
