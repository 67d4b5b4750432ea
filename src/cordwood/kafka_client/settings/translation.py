"""Translate settings with Java's names to librdkafka's. Pure.

A setting that both clients know is passed on. The others are translated, have no effect, or are refused with
what to do instead; `names` says which. Messages never contain passwords.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cordwood.errors import ConfigError, InvalidSetting
from cordwood.kafka_client.settings.jaas import from_jaas
from cordwood.kafka_client.settings.names import (
    ISSUER_URL,
    LOGIN_HANDLER,
    REFUSED,
    RENAMED,
    WITHOUT_EFFECT,
    NamedSettings,
)
from cordwood.kafka_client.settings.pem import rewrapped

_CALLBACK = re.compile(r"\w*_cb")
_JAVAS_OWN_HANDLER = re.compile(r"org\.apache\.kafka\.[\w.]*\.OAuthBearerLoginCallbackHandler")
#: librdkafka puts these into the command of ``kinit``, so they must not contain characters with a meaning in
#: a shell.
_IN_A_COMMAND = ("sasl.kerberos.principal", "sasl.kerberos.keytab", "sasl.kerberos.service.name")
_PLAIN = re.compile(r"[\w.@/:-]*", re.ASCII)
_PEM_TEXTS = ("ssl.ca.pem", "ssl.certificate.pem", "ssl.key.pem")


@dataclass(frozen=True)
class ClientSettings:
    """The settings of a client, and those without effect, each with its reason.

    ``answer_seconds`` is the time limit for an answer of the broker, None if not given. The representation
    has no values, which may be passwords.
    """

    settings: dict[str, str] = field(default_factory=dict, repr=False)
    answer_seconds: float | None = None
    unused: dict[str, str] = field(default_factory=dict)


def translate(
    given: Mapping[str, str],
    *,
    prefix: str = "",
    refused: Sequence[NamedSettings] = (),
    without_effect: Sequence[NamedSettings] = (),
) -> ClientSettings:
    """Return librdkafka's settings for *given* ones; *prefix* stands before their names in messages.

    The tables *refused* and *without_effect* come in addition to those of every client.

    Raises:
        ConfigError: If one is not supported; says what to do.
    """
    found, unused = dict(given), {}
    if _JAVAS_OWN_HANDLER.fullmatch(found.get(LOGIN_HANDLER, "").strip()):
        unused[prefix + LOGIN_HANDLER] = "the client asks for tokens by itself"
        del found[LOGIN_HANDLER]
    for names, sentence in (*refused, *REFUSED):
        for name in sorted(names & found.keys()):
            raise ConfigError(prefix + name, f"{prefix}{name} {sentence.replace('{prefix}', prefix)}")
    for name in found:
        if _CALLBACK.fullmatch(name):
            raise ConfigError(prefix + name, f"{prefix}{name} is not a setting of text")
    for names, sentence in (*WITHOUT_EFFECT, *without_effect):
        for name in sorted(names & found.keys()):
            unused[prefix + name] = sentence
            del found[name]
    seconds = _translate(found, unused, prefix)
    for name in _IN_A_COMMAND:
        if not _PLAIN.fullmatch(found.get(name, "")):
            raise InvalidSetting(prefix + name, found[name], "letters, digits and any of _.@/:-")
    return ClientSettings(found, seconds, unused)


def _translate(found: dict[str, str], unused: dict[str, str], prefix: str) -> float | None:
    """Replace Java's settings in *found* by librdkafka's; return the time limit for an answer."""
    for name, other in RENAMED.items():
        if name in found:
            value = found.pop(name)
            # Java's -1 leaves the size of a socket's buffer to the system, as 0 does here.
            found[other] = "0" if name.endswith("buffer.bytes") and value.strip() == "-1" else value
    for name in _PEM_TEXTS:
        if name in found:
            found[name] = rewrapped(found[name])
    if "sasl.jaas.config" in found:
        text, mechanism = found.pop("sasl.jaas.config"), found.get("sasl.mechanism")
        found |= from_jaas(text, mechanism, prefix=prefix, token_url=found.get(ISSUER_URL))
    if found.get("ssl.endpoint.identification.algorithm", "https").strip() == "":
        found["ssl.endpoint.identification.algorithm"] = "none"
    if "buffer.memory" in found:
        found["queue.buffering.max.kbytes"] = str(max(_whole(found, "buffer.memory", prefix) // 1024, 1))
        del found["buffer.memory"]
    for codec in ("gzip", "lz4", "zstd"):
        level = found.pop(f"compression.{codec}.level", None)
        if level is not None and found.get("compression.type") == codec:
            found["compression.level"] = level
        elif level is not None:
            unused[f"{prefix}compression.{codec}.level"] = f"compression.type is not {codec}"
    if "default.api.timeout.ms" not in found:
        return None
    milliseconds = _whole(found, "default.api.timeout.ms", prefix)
    del found["default.api.timeout.ms"]
    return milliseconds / 1000


def _whole(found: Mapping[str, str], name: str, prefix: str) -> int:
    text = found[name].strip()
    if not re.fullmatch(r"\d{1,15}", text) or int(text) == 0:
        raise InvalidSetting(prefix + name, found[name], "a whole number from 1 on")
    return int(text)
