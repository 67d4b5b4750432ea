"""Requests of commands over HTTP: whom they trust, and with which token or certificate they come."""

from __future__ import annotations

import functools
import http.client
import ipaddress
import os
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, urlsplit

import click

from cordwood.errors import CordwoodError

_FILE_BYTES_MAX = 64 << 10
#: The longest answer that is read: metrics of a server with very many partitions.
_ANSWER_BYTES_MAX = 256 << 20
#: What may stand in a header after the word Bearer.
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
#: What may stand in a request: printable ASCII.
_URL = re.compile(r"[!-~]+")


class WebRefused(CordwoodError):
    """A server gave no answer, or not a success. ``status`` is that of the answer, None without one."""

    def __init__(self, reason: object, status: int | None = None) -> None:
        super().__init__(str(reason))
        self.status = status


@dataclass(frozen=True)
class WebServer:
    """A server: its address, and what this client trusts and shows."""

    url: str
    context: ssl.SSLContext | None
    token: str | None = field(default=None, repr=False)

    def get(self, seconds: float) -> str:
        """Return the text at the address. Raises as `post`."""
        return self._ask(None, seconds)[1]

    def post(self, text: str, seconds: float) -> int:
        """Send *text*, and return the status of the answer, which is a success.

        A redirection counts as a failure: its target must not get the token, and does not have the text.

        Raises:
            WebRefused: If the server does not accept it; never quotes the token.
        """
        return self._ask(text.encode(), seconds)[0]

    def _ask(self, body: bytes | None, seconds: float) -> tuple[int, str]:
        headers = {} if body is None else {"Content-Type": "text/plain; charset=utf-8"}
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        # The scheme was checked, and without a body it is a GET.
        request = urllib.request.Request(self.url, body, headers)  # noqa: S310
        handlers: list[urllib.request.BaseHandler] = [_NoRedirection()]
        if self.context is not None:
            handlers.append(urllib.request.HTTPSHandler(context=self.context))
        elif self.token is not None:
            # On this machine, and in the clear: a proxy would see the token.
            handlers.append(urllib.request.ProxyHandler({}))
        try:
            with urllib.request.build_opener(*handlers).open(request, timeout=seconds) as answer:
                return int(answer.status), answer.read(_ANSWER_BYTES_MAX).decode(errors="replace")
        except urllib.error.HTTPError as error:
            error.close()
            raise WebRefused(f"it answered {error.code}", error.code) from error
        except urllib.error.URLError as error:
            raise WebRefused(error.reason) from error
        except (OSError, http.client.HTTPException) as error:
            raise WebRefused(str(error) or type(error).__name__) from error


class _NoRedirection(urllib.request.HTTPRedirectHandler):
    """Reports a redirection as the answer that it is."""

    def redirect_request(self, *arguments: Any) -> None:
        return None


@dataclass(frozen=True)
class WebTarget:
    """The values of the options of `web_options`, whose names begin with ``--`` and *option*."""

    option: str
    url: str
    ca: str | None
    certificate: str | None
    key: str | None
    token_file: str | None

    @property
    def token_variable(self) -> str:
        """The variable of the environment that may have the token."""
        return _token_variable(self.option)

    def server(self) -> WebServer:
        """Read the files, and return the server.

        Raises:
            click.UsageError: If the options contradict each other.
            CordwoodError: If a file cannot be used, or the token would go over a network in the clear.
        """
        address = self._address()
        if self.key is not None and self.certificate is None:
            raise click.UsageError(f"--{self.option}-key needs --{self.option}-cert.")
        token = self._token()
        if address.scheme == "https":
            return WebServer(self.url, _context(self.ca, self.certificate, self.key), token)
        if self.ca is not None or self.certificate is not None:
            raise click.UsageError(
                f"--{self.option}-ca and --{self.option}-cert are for a URL that begins with https://."
            )
        if token is not None and not _is_here(str(address.hostname)):
            raise CordwoodError(f"a bearer token goes over https:// only, not to {self.url}")
        return WebServer(self.url, None, token)

    def _address(self) -> SplitResult:
        expected = f"--{self.option} takes a URL that begins with http:// or https://"
        try:
            address = urlsplit(self.url)
            _ = address.port
        except ValueError as error:
            raise click.UsageError(f"{expected}: {error}.") from None
        if address.username is not None:
            # Not quoted: there may be a password.
            raise click.UsageError(f"{expected}, without a user: give a token in --{self.option}-token-file.")
        if address.scheme not in ("http", "https") or not address.hostname or not _URL.fullmatch(self.url):
            raise click.UsageError(f"{expected}.")
        return address

    def _token(self) -> str | None:
        """Return the token in the file, or else in the variable, or None without either.

        Raises:
            CordwoodError: If it is no bearer token; never quotes it.
        """
        path = self.token_file
        if path is None:
            where, text = self.token_variable, os.environ.get(self.token_variable, "")
            if not text:
                return None
        else:
            where = path
            try:
                with open(path, encoding="ascii", errors="replace") as file:
                    text = file.read(_FILE_BYTES_MAX)
            except OSError as error:
                raise CordwoodError(f"{path} cannot be read: {error.strerror}") from None
        if not _TOKEN.fullmatch(text.strip()):
            raise CordwoodError(f"{where} has no bearer token: expected letters, digits and any of ._~+/-=")
        return text.strip()


def _token_variable(option: str) -> str:
    return f"CORDWOOD_{option.upper()}_TOKEN"


def web_options(
    option: str, metavar: str, text: str, whole: Callable[[str], str] = str
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add ``--OPTION`` with the help *text*, and ``--OPTION-ca``, ``-cert``, ``-key`` and ``-token-file``.

    The command gets a `WebTarget` as *option*, or None without the first. *whole* makes a URL of its value.
    """
    details = {
        "ca": "Trust these certificates (PEM) [those of the system].",
        "cert": "Show this certificate (PEM), with its key in it or not.",
        "key": f"The key of --{option}-cert (PEM).",
        "token-file": f"Send the bearer token in this file [{_token_variable(option)} has the token itself].",
    }

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def with_target(*arguments: Any, **options: Any) -> Any:
            url = options.pop(option)
            values = [options.pop(f"{option}_{each.replace('-', '_')}") for each in details]
            if url is None and any(value is not None for value in values):
                names = [f"--{option}-{each}" for each in details]
                raise click.UsageError(f"{', '.join(names[:-1])} and {names[-1]} need --{option}.")
            target = None if url is None else WebTarget(option, whole(url), *values)
            return command(*arguments, **{option: target}, **options)

        added = [click.option(f"--{option}", metavar=metavar, help=text)]
        added += [
            click.option(f"--{option}-{each}", metavar="FILE", help=sentence)
            for each, sentence in details.items()
        ]
        for each in reversed(added):
            with_target = each(with_target)
        return with_target

    return decorate


def _context(ca: str | None, certificate: str | None, key: str | None) -> ssl.SSLContext:
    doing = ca
    try:
        context = ssl.create_default_context(cafile=ca)
        doing = certificate if key is None else f"{certificate} with {key}"
        if certificate is not None:
            # A key with a password would ask at the terminal; an empty one fails.
            context.load_cert_chain(certificate, key, password="")
    except OSError as error:
        # A fault in a file has no words of the system.
        is_content = isinstance(error, ssl.SSLError)
        reason = "it is not PEM, or key and certificate do not match" if is_content else error.strerror
        raise CordwoodError(f"{doing} cannot be used: {reason}") from None
    return context


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
