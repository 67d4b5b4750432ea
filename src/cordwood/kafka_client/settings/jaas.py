"""Translate ``sasl.jaas.config``, the credentials of Java's client, to librdkafka's settings. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from cordwood.errors import ConfigError
from cordwood.kafka_client.settings.names import ISSUER_URL

_JAAS = "sasl.jaas.config"
_ENTRY = re.compile(
    r"\s*(?P<module>[\w.$]+)\s+(?:required|requisite|sufficient|optional)\b(?P<options>.*);\s*", re.DOTALL
)
_OPTION = re.compile(r"""\s*([\w.]+)\s*=\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s;"']+)""", re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_EXTENSION = "extension_"


def from_jaas(
    text: str, mechanism: str | None, *, prefix: str = "", token_url: str | None = None
) -> dict[str, str]:
    """Return the settings of the one login module in *text*, besides ``sasl.mechanism``.

    *prefix* stands before the names of settings in messages; tokens come from *token_url*, a file if its
    scheme says so.

    Raises:
        ConfigError: If it is not one login module, or an unsupported one. Never quotes *text*, which contains
            a password.
    """
    name = prefix + _JAAS
    entry = _ENTRY.fullmatch(text)
    if entry is None:
        raise ConfigError(
            name,
            f"{name} is not one login module: expected "
            'org.apache.kafka.common.security.plain.PlainLoginModule required username="…" password="…";',
        )
    options = _options(name, entry["options"])
    # Some vendors prefix Kafka's package with their own.
    module = entry["module"].rpartition(".")[2]
    match module:
        case "PlainLoginModule":
            return {"sasl.mechanism": mechanism or "PLAIN", **_user(name, module, options)}
        case "ScramLoginModule":
            if mechanism is None:
                missing = f"{prefix}sasl.mechanism"
                needed = "ScramLoginModule needs SCRAM-SHA-256 or SCRAM-SHA-512"
                raise ConfigError(missing, f"{missing} is missing: {needed}")
            return _user(name, module, options)
        case "OAuthBearerLoginModule":
            if token_url is not None and token_url.strip().lower().startswith("file:"):
                return {"sasl.mechanism": "OAUTHBEARER", **_extensions(options)}
            return _oauth(name, prefix, options)
        case "Krb5LoginModule":
            return _kerberos(options)
    raise ConfigError(
        name,
        f"{name} names {module}, but there are PlainLoginModule, ScramLoginModule, OAuthBearerLoginModule "
        "and Krb5LoginModule here",
    )


def _options(name: str, text: str) -> dict[str, str]:
    found, position = {}, 0
    while text[position:].strip():
        option = _OPTION.match(text, position)
        if option is None or (";" in option[2] and option[2][0] not in "\"'"):
            raise ConfigError(name, f"{name} has something that is not name=value after its login module")
        value = option[2]
        found[option[1]] = _ESCAPED.sub(r"\1", value[1:-1]) if value[0] in "\"'" else value
        position = option.end()
    return found


def _user(name: str, module: str, options: Mapping[str, str]) -> dict[str, str]:
    missing = [each for each in ("username", "password") if each not in options]
    if missing:
        raise ConfigError(name, f"{name}: {module} is given no {missing[0]}")
    return {"sasl.username": options["username"], "sasl.password": options["password"]}


def _oauth(name: str, prefix: str, options: Mapping[str, str]) -> dict[str, str]:
    """Return how a token is asked for; the address is in ``sasl.oauthbearer.token.endpoint.url``."""
    names = {"clientId": "client.id", "clientSecret": "client.secret", "scope": "scope"}
    if "clientId" not in options or "clientSecret" not in options:
        raise ConfigError(
            name,
            f"{name}: OAuthBearerLoginModule needs clientId and clientSecret here: a token is asked for at "
            f"{prefix}{ISSUER_URL}",
        )
    found = {"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.method": "oidc"}
    found |= {f"sasl.oauthbearer.{names[each]}": value for each, value in options.items() if each in names}
    return found | _extensions(options)


def _extensions(options: Mapping[str, str]) -> dict[str, str]:
    found = [
        f"{name.removeprefix(_EXTENSION)}={value}"
        for name, value in options.items()
        if name.startswith(_EXTENSION)
    ]
    return {"sasl.oauthbearer.extensions": ",".join(found)} if found else {}


def _kerberos(options: Mapping[str, str]) -> dict[str, str]:
    names = {"keyTab": "keytab", "principal": "principal", "serviceName": "service.name"}
    found = {f"sasl.kerberos.{names[name]}": value for name, value in options.items() if name in names}
    return {"sasl.mechanism": "GSSAPI", **found}
