"""Lines of the server's log, none of which a client can make."""

from __future__ import annotations

import logging


def escaped(text: str) -> str:
    """Return *text* with characters that begin a line, or command a terminal, as escapes."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


class LineFormatter(logging.Formatter):
    """One line for each message. The lines of a traceback follow it, indented.

    Messages name what clients named, such as groups: whatever that is, only the server begins a line.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """Return the line of a record."""
        return escaped(super().formatMessage(record))

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record, and the traceback of its exception."""
        line, _, rest = super().format(record).partition("\n")
        # Not splitlines: it would leave what other programs take for the end of a line.
        lines = (f"  {escaped(each)}" for each in rest.split("\n") if each)
        return "\n".join((line, *lines))
