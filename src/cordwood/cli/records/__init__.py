"""Commands that append and read records: produce, consume."""

from cordwood.cli.records.offsets import Start, chosen, parse_start, starts
from cordwood.cli.records.rendering import record_fields

__all__ = [
    "Start",
    "chosen",
    "parse_start",
    "record_fields",
    "starts",
]
