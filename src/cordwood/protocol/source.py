"""Generation of Python source, shared by the two compilers of messages."""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cordwood.protocol.schema import Field
from cordwood.protocol.wire import (
    READ_ERRORS,
    SHORT_VARINTS,
    WRITE_ERRORS,
    malformed,
    read_tag,
    read_tag_count,
    read_varint,
    skip_tags,
    unreadable,
    varint,
)


@dataclass
class SourceText(ABC):
    """Python source under construction. ``fields`` has the field of each line."""

    cls: type[Any]
    version: int
    flexible: bool
    depth: int = 2
    lines: list[str] = field(default_factory=list)
    fields: list[str] = field(default_factory=list)
    names: dict[str, Any] = field(default_factory=dict)
    path: str = ""
    run: list[tuple[str, str, str]] = field(default_factory=list)

    @property
    def title(self) -> str:
        """The message that the function reads or writes."""
        return f"{self.cls.__name__} v{self.version}"

    def line(self, text: str) -> None:
        """Append a line to the open block."""
        self.lines.append("    " * self.depth + text)
        self.fields.append(self.path)

    def fresh(self, prefix: str) -> str:
        """Return an unused name."""
        name = f"{prefix}{len(self.names)}"
        self.names[name] = None
        return name

    def constant(self, prefix: str, value: Any) -> str:
        """Return the name of a constant with *value* in the function."""
        name = self.fresh(prefix)
        self.names[name] = value
        return name

    def collect(self, code: str, name: str) -> None:
        """Add a fixed-size value to the run that one ``struct`` call will handle."""
        self.run.append((code, name, self.path))

    def run_line(self, text: str) -> None:
        """Append the line that handles the run; its fields are those from the first to the last."""
        path, paths = self.path, [each for _, _, each in self.run]
        self.path = paths[0] if paths[0] == paths[-1] else f"{paths[0]} to {paths[-1]}"
        self.line(text)
        self.path = path

    def default(self, each: Field) -> str:
        """Return an expression for the default of a field; a new object if it is mutable."""
        if isinstance(each.default, type):
            return f"{self.constant('Message', each.default)}()"
        return repr(each.default)

    def block(self, head: str) -> Block:
        """Open an indented block, for use in a ``with`` statement."""
        self.line(head)
        return Block(self)

    @abstractmethod
    def flush(self) -> None:
        """Turn the fixed-size values collected in ``run`` into one line."""

    def compile(self, arguments: str, first: list[str], errors: str, on_error: str) -> Callable[..., Any]:
        """Return the compiled function; errors in it name the field of their line."""
        head = [f"def function({arguments}):", *(f"    {each}" for each in first), "    try:"]
        tail = [f"    except {errors} as e:", f"        raise {on_error} from None"]
        paths = [""] * len(head) + self.fields

        def where(error: Exception) -> str:
            assert error.__traceback__ is not None
            path = paths[error.__traceback__.tb_lineno - 1]
            return f"{self.title}, {path}" if path else self.title

        def unwritable(error: Exception) -> ValueError:
            return ValueError(f"{where(error)} cannot be written: {error}")

        names = {
            **{name: value for name, value in self.names.items() if value is not None},
            "malformed": malformed,
            "unreadable": unreadable,
            "unwritable": unwritable,
            "where": where,
            "read_varint": read_varint,
            "read_tag": read_tag,
            "read_tag_count": read_tag_count,
            "skip_tags": skip_tags,
            "varint": varint,
            "SHORT_VARINTS": SHORT_VARINTS,
            "READ_ERRORS": READ_ERRORS,
            "WRITE_ERRORS": WRITE_ERRORS,
            "pack": struct.pack,
            "unpack_from": struct.unpack_from,
        }
        code = compile("\n".join([*head, *self.lines, *tail]), f"<{self.title}>", "exec")
        exec(code, names)  # noqa: S102 - the source is made of declarations in this package, never of input
        return names["function"]  # type: ignore[no-any-return]


@dataclass
class Block:
    """Context manager that indents the lines appended in it."""

    source: SourceText

    def __enter__(self) -> None:
        self.source.depth += 1

    def __exit__(self, *_: object) -> None:
        self.source.flush()
        self.source.depth -= 1
