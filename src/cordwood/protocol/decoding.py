"""Compile a message class and a version into a function that decodes it.

Decoders do not trust their input. Before memory is allocated for a count or a length, it is compared with the
remaining bytes: an array of n elements needs at least n times the size of the smallest element. For any
input, a decoder returns a message or raises :class:`MalformedMessage`.

Bytes after the end of the message in a frame are ignored, as in Kafka's own broker. librdkafka sends three of
them after a Metadata request for all topics.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cordwood.protocol.schema import (
    Array,
    Field,
    Fixed,
    Sized,
    Struct,
    WireType,
    batches,
    buffers,
    every_field,
    fields_of,
    string,
)
from cordwood.protocol.source import SourceText
from cordwood.protocol.wire import Decode

#: By type, the expressions for an empty value and for the value between ``i`` and ``j`` of the frame.
_TAKEN: dict[WireType, tuple[str, str]] = {
    string: ("''", "str(b[i:j], 'utf-8')"),
    batches: ("view[i:i]", "view[i:j]"),
    buffers: ("(view[i:i],)", "(view[i:j],)"),
}
#: An array with more elements is refused: even small elements would take seconds and a gigabyte.
ELEMENTS_MAX = 150_000


def compile_decoder(cls: type[Any], version: int, flexible: bool) -> Decode:
    """Return the function that decodes *version* of *cls*: ``decode(frame, position)``.

    Bytes after the message in the frame are ignored.
    """
    source = DecoderSource(cls, version, flexible)
    source.line(f"return {source.struct(cls, '')}")
    first = ["end = len(b)", "view = memoryview(b)"]
    decode: Decode = source.compile("b, i", first, "READ_ERRORS", "unreadable(e, i, where(e), end)")
    return decode


def smallest_size(wire_type: WireType, version: int, flexible: bool) -> int:
    """Return the smallest size of a value in bytes, which limits the count of an array."""
    if isinstance(wire_type, Fixed):
        return wire_type.size
    if isinstance(wire_type, Sized):
        return 1 if flexible else wire_type.size
    if isinstance(wire_type, Array):
        return 1 if flexible else 4
    total = 1 if flexible else 0
    for each in fields_of(wire_type.message, version):
        if each.tag is None:
            is_nullable_struct = isinstance(each.type, Struct) and version in each.nullable
            total += 1 if is_nullable_struct else smallest_size(each.type, version, flexible)
    return total


class DecoderSource(SourceText):
    """Source that reads from frame ``b`` at ``i``, up to ``end``."""

    def fail(self, what: str, found: str) -> None:
        """Add code that refuses the current field; *found* is an expression."""
        self.line(f"raise malformed(i, {f'{self.title}, {self.path} {what}'!r}, {found})")

    def flush(self) -> None:
        """Read the fixed-size values collected in ``run`` with one line."""
        if not self.run:
            return
        codes, targets = "".join(code for code, _, _ in self.run), [target for _, target, _ in self.run]
        size = struct.calcsize(f">{codes}")
        if codes == "B":
            self.run_line(f"{targets[0]} = b[i]")
        else:
            unpack = self.constant("unpack", struct.Struct(f">{codes}").unpack_from)
            self.run_line(f"{', '.join(targets)}, = {unpack}(b, i)")
        self.line(f"i += {size}")
        self.run.clear()

    def struct(self, cls: type[Any], path: str) -> str:
        """Read a message, and return the expression that constructs it."""
        fields = fields_of(cls, self.version)
        variables = {each.name: self.fresh("v") for each in fields}
        for each in fields:
            self.path = f"{path}{each.name}"
            if each.tag is None:
                self.value(each.type, variables[each.name], self.version in each.nullable)
        self.path = path.rstrip(".")
        if self.flexible:
            self.tags([each for each in fields if each.tag is not None], variables, path)
        self.flush()
        self.path = path.rstrip(".")
        values = [variables.get(each.name) or self.default(each) for each in every_field(cls)]
        return f"{self.constant('Message', cls)}({', '.join(values)})"

    def tags(self, known: list[Field], variables: dict[str, str], path: str) -> None:
        """Read the tagged fields: the *known* ones by their type, the others by their size."""
        if not known:
            first = self.fresh("n")
            self.collect("B", first)
            self.flush()
            with self.block(f"if {first}:"):
                self.line("i = skip_tags(b, i - 1)")
            return
        self.flush()
        for each in known:
            self.line(f"{variables[each.name]} = {self.default(each)}")
        count, tag, stop = self.fresh("n"), self.fresh("tag"), self.fresh("stop")
        self.line(f"{count}, i = read_tag_count(b, i)")
        self.line(f"{tag} = -1")
        with self.block(f"for _ in range({count}):"):
            self.line(f"{tag}, i, {stop} = read_tag(b, i, {tag})")
            for each in known:
                self.path = f"{path}{each.name}"
                with self.block(f"if {tag} == {each.tag}:"):
                    self.value(each.type, variables[each.name], self.version in each.nullable)
                    self.flush()
                    with self.block(f"if i != {stop}:"):
                        self.fail("does not end where its size says", f"f'byte {{i}} for {{{stop}}}'")
            self.path = path.rstrip(".")
            self.line(f"i = {stop}")

    def value(self, wire_type: WireType, target: str, nullable: bool) -> None:
        """Read one value into the variable *target*."""
        if isinstance(wire_type, Fixed):
            self.collect(wire_type.code, target)
        elif isinstance(wire_type, Struct):
            self.nested(wire_type, target, nullable)
        elif isinstance(wire_type, Sized):
            empty, taken = _TAKEN.get(wire_type, ("b''", "bytes(b[i:j])"))
            if wire_type is buffers:
                sized = self.length(wire_type.code, target, True, empty, null="()")
            else:
                sized = self.length(wire_type.code, target, nullable, empty)
            with sized as size:
                self.line(f"j = i + {size}{self.less_one}")
                with self.block("if j > end:"):
                    self.fail("goes on past the end", "f'{j - i} bytes, {end - i} left'")
                self.line(f"{target} = {taken}")
                self.line("i = j")
        else:
            self.elements(wire_type, target, nullable)

    @property
    def less_one(self) -> str:
        """The suffix that corrects a length that was read: compact lengths are one more."""
        return " - 1" if self.flexible else ""

    @contextmanager
    def length(self, code: str, target: str, nullable: bool, empty: str, null: str = "None") -> Iterator[str]:
        """Read a length or count, and yield its variable to the block, which reads a non-empty value."""
        size = self.fresh("n")
        self.collect("B" if self.flexible else code, size)
        self.flush()
        if self.flexible:
            # A varint of two bytes is read inline: a call costs as much as the rest of a small message.
            with self.block(f"if {size} > 127:"):
                with self.block("if b[i] < 128:"):
                    self.line(f"{size} += (b[i] << 7) - 128")
                    self.line("i += 1")
                with self.block("else:"):
                    self.line(f"{size}, i = read_varint(b, i - 1)")
        with self.block(f"if {size} > {int(self.flexible)}:"):
            yield size
        with self.block(f"elif {size} == {int(self.flexible)}:"):
            self.line(f"{target} = {empty}")
        with self.block("else:"):
            if nullable and not self.flexible:
                with self.block(f"if {size} != -1:"):
                    self.fail("has a negative length", size)
            if nullable:
                self.line(f"{target} = {null}")
            else:
                self.fail("is null or has a negative length", f"{size}{self.less_one}")

    def elements(self, array: Array, target: str, nullable: bool) -> None:
        """Read an array, after a check that its elements fit the remaining bytes."""
        smallest = max(1, smallest_size(array.element, self.version, self.flexible))
        with self.length("i", target, nullable, "[]") as count:
            if self.flexible:
                self.line(f"{count} -= 1")
            with self.block(f"if {count} * {smallest} > end - i or {count} > {ELEMENTS_MAX}:"):
                self.fail("has more elements than fit", f"f'{{{count}}} elements, {{end - i}} bytes left'")
            if isinstance(array.element, Fixed) and len(array.element.code) == 1:
                self.line(f"{target} = list(unpack_from('>%d{array.element.code}' % {count}, b, i))")
                self.line(f"i += {count} * {array.element.size}")
                return
            path = self.path
            if isinstance(array.element, Struct) and self.same_size(array.element.message, target, count):
                return
            self.line(f"{target} = []")
            with self.block(f"for _ in range({count}):"):
                if isinstance(array.element, Struct):
                    element = self.struct(array.element.message, f"{path}.")
                else:
                    element = self.fresh("e")
                    self.value(array.element, element, False)
                self.flush()
                self.line(f"{target}.append({element})")
            self.path = path

    def same_size(self, cls: type[Any], target: str, count: str) -> bool:
        """Read an array of messages with one call if all their fields have a fixed size; return whether."""
        fields = fields_of(cls, self.version)
        codes = [each.type.code for each in fields if isinstance(each.type, Fixed)]
        if self.flexible or len(codes) < len(fields):
            return False
        layout = struct.Struct(f">{''.join(codes)}")
        unpack = self.constant("unpack", layout.iter_unpack)
        variables = {each.name: self.fresh("v") for each in fields}
        values = [variables.get(each.name) or self.default(each) for each in every_field(cls)]
        made = f"{self.constant('Message', cls)}({', '.join(values)})"
        self.line(f"j = i + {count} * {layout.size}")
        self.line(f"{target} = [{made} for {', '.join(variables.values())}, in {unpack}(view[i:j])]")
        self.line("i = j")
        return True

    def nested(self, wire_type: Struct, target: str, nullable: bool) -> None:
        """Read a message within a message; if it is nullable, its first byte says whether it is null."""
        path = self.path
        if not nullable:
            self.line(f"{target} = {self.struct(wire_type.message, f'{path}.')}")
            self.path = path
            return
        present = self.fresh("n")
        self.collect("b", present)
        self.flush()
        with self.block(f"if {present} < 0:"):
            self.line(f"{target} = None")
        with self.block("else:"):
            self.line(f"{target} = {self.struct(wire_type.message, f'{path}.')}")
        self.path = path
