"""The argument ``tls`` of `cordwood.Broker`: settings made of it, and what clients need."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from cordwood.errors import InvalidSetting
from cordwood.host import Clock
from cordwood.server.security.throwaway import make_keys

#: The PEM files that the argument may name: certificate and key may be one file, and with ``ca`` clients must
#: present a certificate that one of its authorities signed.
_FILES = ("certificate", "key", "ca")
TlsFiles = Mapping[str, str | os.PathLike[str]]


class EmbeddedTls:
    """TLS of one broker in this process."""

    def __init__(self, tls: bool | TlsFiles, clock: Clock) -> None:
        """Read the files of *tls*, or make keys if it is True.

        Raises:
            InvalidSetting: If *tls* names another file than expected, or one that cannot be read.
            ConfigError: If keys cannot be made.
        """
        #: The authority that clients must trust, as PEM text; None if the keys were given.
        self.ca_pem: str | None = None
        self._path: str | None = None
        if isinstance(tls, Mapping):
            self.settings = _settings_of(tls)
            return
        self.settings = {}
        if tls:
            keys = make_keys(clock.now_ms())
            self.settings = {"ssl.keystore.key": keys.key, "ssl.keystore.certificate.chain": keys.certificate}
            self.ca_pem = keys.authority

    @property
    def ca_path(self) -> str | None:
        """A file with `ca_pem`, until `close`."""
        if self._path is None and self.ca_pem is not None:
            handle, self._path = tempfile.mkstemp(prefix="cordwood-ca-", suffix=".pem")
            with open(handle, "w") as file:
                file.write(self.ca_pem)
        return self._path

    def close(self) -> None:
        """Remove the file. Idempotent."""
        if self._path is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
            self._path = None


def _settings_of(files: TlsFiles) -> dict[str, str]:
    unknown = sorted(set(files) - set(_FILES))
    if unknown or "certificate" not in files:
        expected = f"the path of a PEM file for each of {', '.join(_FILES)}, where certificate is needed"
        raise InvalidSetting("tls", ", ".join(files), expected)
    settings = {}
    if "key" in files:
        settings["ssl.keystore.key"] = _read(files["key"])
        settings["ssl.keystore.certificate.chain"] = _read(files["certificate"])
    else:
        settings["ssl.keystore.location"] = os.fspath(files["certificate"])
    if "ca" in files:
        settings["ssl.truststore.location"] = os.fspath(files["ca"])
        settings["ssl.client.auth"] = "required"
    return settings


def _read(path: str | os.PathLike[str]) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InvalidSetting("tls", os.fspath(path), f"a PEM file that can be read; {error}") from None
