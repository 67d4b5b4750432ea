"""TLS for requests that librdkafka has no call for: its settings as a context of Python's."""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from cordwood.errors import ConfigError
from cordwood.kafka_client.settings import own_pem

Result = TypeVar("Result")
_SECURE = ("ssl", "sasl_ssl")


def tls_context(settings: Mapping[str, Any]) -> ssl.SSLContext | None:
    """Return the context that librdkafka's *settings* describe, or None for a connection without TLS.

    Raises:
        ConfigError: If a file or text of certificates cannot be used; never quotes one.
    """
    if str(settings.get("security.protocol", "")).lower() not in _SECURE:
        return None
    context = _named("ssl.ca.location", lambda: _trusting(settings))
    if str(settings.get("enable.ssl.certificate.verification", "true")).lower() == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif str(settings.get("ssl.endpoint.identification.algorithm", "https")).lower() == "none":
        context.check_hostname = False
    _named("ssl.certificate.location", lambda: _show(context, settings))
    return context


def _named(name: str, call: Callable[[], Result]) -> Result:
    try:
        return call()
    except ssl.SSLError as error:
        raise ConfigError(name, f"{name} cannot be used: {error.reason or 'it is not PEM'}") from None
    except OSError as error:
        raise ConfigError(name, f"{name} cannot be read: {error.strerror}") from None


def _trusting(settings: Mapping[str, Any]) -> ssl.SSLContext:
    path = settings.get("ssl.ca.location")
    if path == "probe":
        # librdkafka's word for the certificates of the system.
        path = None
    folder = path is not None and os.path.isdir(path)
    return ssl.create_default_context(
        cafile=None if folder else path, capath=path if folder else None, cadata=settings.get("ssl.ca.pem")
    )


def _show(context: ssl.SSLContext, settings: Mapping[str, Any]) -> None:
    """Let *context* show the certificate of *settings*, if there is one."""
    password = settings.get("ssl.key.password", "")
    if "ssl.certificate.location" in settings:
        chain = settings["ssl.certificate.location"]
        context.load_cert_chain(chain, settings.get("ssl.key.location"), password)
    elif "ssl.certificate.pem" in settings:
        text = f"{settings['ssl.certificate.pem']}\n{settings.get('ssl.key.pem', '')}"
        _show_text(context, text, password)
    elif "ssl.keystore.location" in settings:
        _show_text(context, own_pem(settings), "")


def _show_text(context: ssl.SSLContext, text: str, password: str) -> None:
    # Python takes files only. This one is private and gone at once.
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
        file.write(text)
        file.flush()
        context.load_cert_chain(file.name, None, password)
