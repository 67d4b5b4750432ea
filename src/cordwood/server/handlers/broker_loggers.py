"""The levels of our loggers, told and set by Kafka's names for them. They hold until the process ends."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from cordwood.errors import ConfigError, InvalidSetting
from cordwood.protocol.messages import IncrementalAlterableConfig

#: The logger above all of ours. Those of whoever runs a broker in a process of their own are theirs.
ROOT = "cordwood"
#: Kafka's levels and Python's numbers for them, the finest first.
LEVELS = {
    "TRACE": 5,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}
SET, DELETE = 0, 1


def logger_levels() -> dict[str, str]:
    """Return the level at which each of our loggers logs, its own or that of the one above it."""
    return {name: _level_of(logging.getLogger(name)) for name in sorted(_names())}


def _names() -> list[str]:
    below = [
        name
        for name, found in logging.root.manager.loggerDict.items()
        if name.startswith(f"{ROOT}.") and isinstance(found, logging.Logger)
    ]
    return [ROOT, *below]


def _level_of(logger: logging.Logger) -> str:
    number = logger.getEffectiveLevel()
    return next((name for name, least in reversed(LEVELS.items()) if number >= least), "TRACE")


def alter_levels(changes: Sequence[IncrementalAlterableConfig], *, validate_only: bool) -> None:
    """Set the levels of loggers, or give them back to the logger above. All of *changes*, or none.

    Raises:
        ConfigError: If there is no such logger, level or change.
    """
    levels = []
    for change in changes:
        if change.config_operation not in (SET, DELETE):
            raise ConfigError("resource", f"the level of {change.name} can be set and deleted only")
        if change.name not in _names():
            raise ConfigError(change.name, f"there is no logger {change.name}")
        if change.config_operation == DELETE:
            if change.name == ROOT:
                raise ConfigError("resource", f"the level of {ROOT} can be set only: no logger is above it")
            levels.append(logging.NOTSET)
        elif change.value in LEVELS:
            levels.append(LEVELS[change.value])
        else:
            raise InvalidSetting(change.name, change.value, " or ".join(LEVELS))
    if not validate_only:
        for change, level in zip(changes, levels, strict=True):
            logging.getLogger(change.name).setLevel(level)
