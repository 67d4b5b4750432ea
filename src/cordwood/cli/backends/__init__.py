"""The backends of commands: a data directory, or a broker by its address."""

from cordwood.cli.backends.backend import Backend, Chunk, ProducedRow, unknown_group
from cordwood.cli.backends.place import (
    LOCKED_SECONDS,
    CommandTarget,
    check_there,
    data_option,
    data_path,
    json_option,
    log_bytes,
    pairs,
    place_options,
    refusing,
    when_free,
    without_server,
)

__all__ = [
    "LOCKED_SECONDS",
    "Backend",
    "Chunk",
    "CommandTarget",
    "ProducedRow",
    "check_there",
    "data_option",
    "data_path",
    "json_option",
    "log_bytes",
    "pairs",
    "place_options",
    "refusing",
    "unknown_group",
    "when_free",
    "without_server",
]
