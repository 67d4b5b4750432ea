"""The backends of commands: a data directory, or a broker by its address."""

from cordwood.cli.backends.backend import (
    Backend,
    Chunk,
    ProducedRow,
    TransactionDescription,
    unknown_group,
)
from cordwood.cli.backends.completing import complete_group, complete_topic
from cordwood.cli.backends.place import (
    LOCKED_SECONDS,
    CommandTarget,
    check_there,
    client_options,
    data_option,
    data_path,
    is_bucket,
    json_option,
    log_bytes,
    mounted_bucket,
    pairs,
    place_options,
    place_options_beside_config,
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
    "TransactionDescription",
    "check_there",
    "client_options",
    "complete_group",
    "complete_topic",
    "data_option",
    "data_path",
    "is_bucket",
    "json_option",
    "log_bytes",
    "mounted_bucket",
    "pairs",
    "place_options",
    "place_options_beside_config",
    "refusing",
    "unknown_group",
    "when_free",
    "without_server",
]
