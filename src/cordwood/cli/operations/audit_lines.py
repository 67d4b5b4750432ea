"""The audit log for people, a line for each record, and for programs."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from cordwood.broker.audit import AuditRecord, UnreadableAuditRecord
from cordwood.cli.output import printable

#: The columns and how wide each is at least: those of the records that come later are not known.
_HEADINGS = ("time", "outcome", "principal", "host", "api", "resource", "what")
_WIDTHS_MIN = (24, 7, 14, 9, 16, 16)
#: A longer name makes its own line longer, but not all that follow.
_WIDTH_MAX = 40


class AuditLines:
    """Makes the lines; columns grow with what they show."""

    def __init__(self) -> None:
        self._widths = list(_WIDTHS_MIN)

    def heading(self) -> str:
        """Return the line of headings."""
        return self._line(_HEADINGS)

    def line(self, record: AuditRecord | UnreadableAuditRecord) -> str:
        """Return the line of a record. No character in it controls a terminal."""
        if isinstance(record, UnreadableAuditRecord):
            return f"record {record.offset} cannot be read: {printable(record.reason)}"
        cells = (
            record.time,
            record.outcome,
            record.principal,
            record.host,
            record.api,
            f"{record.resource_type}:{record.resource}" if record.resource_type else "",
        )
        return self._line([*(printable(cell) or "-" for cell in cells), _what(record)])

    def _line(self, cells: tuple[str, ...] | list[str]) -> str:
        *columns, last = cells
        for number, cell in enumerate(columns):
            self._widths[number] = max(self._widths[number], min(len(cell), _WIDTH_MAX))
        padded = [cell.ljust(width) for cell, width in zip(columns, self._widths, strict=True)]
        return "  ".join([*padded, last]).rstrip()


def _what(record: AuditRecord) -> str:
    """Return the error, what was changed, and how often it happened."""
    parts = [record.error or ""]
    parts += [f"{name}={_shown(value)}" for name, value in record.details.items()]
    parts.append(f"org={record.org}" if record.org else "")
    parts.append(f"client={record.client_id}" if record.client_id else "")
    parts.append(f"x{record.count}" if record.count != 1 else "")
    parts.append(f"({record.omitted} more of the same client left out)" if record.omitted else "")
    parts.append(f"({record.lost} lost before)" if record.lost else "")
    return " ".join(printable(part) for part in parts if part)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def audit_json(record: AuditRecord | UnreadableAuditRecord) -> str:
    """Return a record as a JSON object on one line, in ASCII: a terminal obeys some other characters."""
    if isinstance(record, UnreadableAuditRecord):
        return json.dumps({"offset": record.offset, "unreadable": record.reason})
    fields = msgspec.structs.asdict(record)
    return json.dumps({"offset": fields.pop("offset"), **fields})
