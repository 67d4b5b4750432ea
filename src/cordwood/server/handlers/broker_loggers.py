"""Levels of Cordwood's loggers under Kafka's names. Changes last until the process ends."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from cordwood.errors import ConfigError, InvalidSetting
from cordwood.protocol.messages import IncrementalAlterableConfig

#: The parent of all loggers of Cordwood. Other loggers of the process are not changed.
ROOT = "cordwood"
#: Kafka's levels and Python's numbers for them, the most detailed first.
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
    """Return the effective level of each logger of Cordwood."""
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
    """Set or reset the levels of loggers: all of *changes* or none.

    Raises:
        ConfigError: If a logger, a level or an operation is unknown.
    """
    levels = []
    for change in changes:
        if change.config_operation not in (SET, DELETE):
            raise ConfigError("resource", f"the level of {change.name} can only be set or deleted")
        if change.name not in _names():
            raise ConfigError(change.name, f"there is no logger {change.name}")
        if change.config_operation == DELETE:
            if change.name == ROOT:
                raise ConfigError("resource", f"the level of {ROOT} can only be set: it has no parent logger")
            levels.append(logging.NOTSET)
        elif change.value in LEVELS:
            levels.append(LEVELS[change.value])
        else:
            raise InvalidSetting(change.name, change.value, " or ".join(LEVELS))
    if not validate_only:
        for change, level in zip(changes, levels, strict=True):
            logging.getLogger(change.name).setLevel(level)
