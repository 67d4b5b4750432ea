"""The client for the server that holds a data directory, to which a sink by path hands its records over.

Options that give a path have no settings of a client. If that server asks for a user or a certificate, they
are in the file that commands use as well.
"""

from __future__ import annotations

import os

from cordwood.kafka_client.settings import CONFIG_VARIABLE, command_settings, read_client_config


def settings_of_server(address: str) -> dict[str, str]:
    """Return the settings of the client for the server at *address*: those of ``CORDWOOD_CLIENT_CONFIG``.

    Raises:
        ConfigError: If the file cannot be read, or a setting is not supported.
    """
    path = os.environ.get(CONFIG_VARIABLE)
    given = read_client_config(path) if path else {}
    return {**command_settings(given, {}).settings, "bootstrap.servers": address}
