"""Compile a message class and a version into a function that reads it.

Decoding trusts nothing. Before anything is allocated for a count or a length, it is compared with the
bytes that are left: an array of n elements needs at least n times the smallest element there can be.
Whatever the bytes are, the only thing that comes out besides a message is :class:`MalformedMessage`.

A frame may go on after the end of its message: such bytes are ignored, as Kafka's own broker does.
librdkafka sends three of them after a Metadata request for all topics.
"""

from __future__ import annotations

import struct
from typing import Any

from cordwood.protocol.schema import (
    Array,
    Field,
    Fixed,
    Sized,
    Struct,
    WireType,
    fields_of,
    fields_without,
    opaque,
)
from cordwood.protocol.source import Source
from cordwood.protocol.wire import Decode

#: An array with more elements is refused: a few bytes each would still cost seconds and a gigabyte.
ELEMENTS_MAX = 150_000


def compile_decoder(cls: type[Any], version: int, flexible: bool) -> Decode:
    """Return the function that reads *version* of *cls*: ``decode(frame, position)``.

    What follows the message in the frame is ignored.
    """
    source = DecoderSource(cls, version, flexible)
    source.struct(cls, "message", "")
    source.line("return message")
    decode: Decode = source.compile(
        "b, i", ["end = len(b)"], "READ_ERRORS", "unreadable(e, i, where(e), end)"
    )
    return decode


def smallest_size(wire_type: WireType, version: int, flexible: bool) -> int:
    """Return how many bytes a value takes at least; the bytes left bound a count by this."""
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


class DecoderSource(Source):
    """Source that reads from frame ``b`` at ``i``, up to ``end``."""

    def fail(self, what: str, found: str) -> None:
        """Refuse the field at hand; *found* is an expression."""
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

    def struct(self, cls: type[Any], target: str, path: str) -> None:
        """Read a message into the variable *target*."""
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
        self.line(f"{target} = new({self.constant('Message', cls)})")
        for name, variable in variables.items():
            self.line(f"{target}.{name} = {variable}")
        for each in fields_without(cls, self.version):
            self.line(f"{target}.{each.name} = {self.default(each)}")

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
            size = self.length(wire_type.code, target, nullable, "b''" if wire_type is opaque else "''")
            with self.block("else:"):
                self.line(f"j = i + {size}")
                with self.block("if j > end:"):
                    self.fail("goes on past the end", f"f'{{{size}}} bytes, {{end - i}} left'")
                taken = "bytes(b[i:j])" if wire_type is opaque else "str(b[i:j], 'utf-8')"
                self.line(f"{target} = {taken}")
                self.line("i = j")
        else:
            self.elements(wire_type, target, nullable)

    def length(self, code: str, target: str, nullable: bool, empty: str) -> str:
        """Read a length or count; leave an ``if`` behind that handled null and emptiness."""
        size = self.fresh("n")
        self.collect("B" if self.flexible else code, size)
        self.flush()
        if self.flexible:
            with self.block(f"if {size} > 127:"):
                self.line(f"{size}, i = read_varint(b, i - 1)")
            self.line(f"{size} -= 1")
        with self.block(f"if {size} < 0:"):
            if nullable:
                if not self.flexible:
                    with self.block(f"if {size} != -1:"):
                        self.fail("has a negative length", size)
                self.line(f"{target} = None")
            else:
                self.fail("is null or has a negative length", size)
        with self.block(f"elif not {size}:"):
            self.line(f"{target} = {empty}")
        return size

    def elements(self, array: Array, target: str, nullable: bool) -> None:
        """Read an array, once it is known that so many elements fit what is left."""
        smallest = max(1, smallest_size(array.element, self.version, self.flexible))
        count = self.length("i", target, nullable, "[]")
        with self.block("else:"):
            with self.block(f"if {count} * {smallest} > end - i or {count} > {ELEMENTS_MAX}:"):
                self.fail("has more elements than fit", f"f'{{{count}}} elements, {{end - i}} bytes left'")
            if isinstance(array.element, Fixed) and len(array.element.code) == 1:
                self.line(f"{target} = list(unpack_from('>%d{array.element.code}' % {count}, b, i))")
                self.line(f"i += {count} * {array.element.size}")
                return
            self.line(f"{target} = []")
            element, path = self.fresh("e"), self.path
            with self.block(f"for _ in range({count}):"):
                if isinstance(array.element, Struct):
                    self.struct(array.element.message, element, f"{path}.")
                else:
                    self.value(array.element, element, False)
                self.flush()
                self.line(f"{target}.append({element})")
            self.path = path

    def nested(self, wire_type: Struct, target: str, nullable: bool) -> None:
        """Read a message within a message; if it can be null, a byte says whether it is."""
        path = self.path
        if not nullable:
            self.struct(wire_type.message, target, f"{path}.")
            self.path = path
            return
        present = self.fresh("n")
        self.collect("b", present)
        self.flush()
        with self.block(f"if {present} < 0:"):
            self.line(f"{target} = None")
        with self.block("else:"):
            self.struct(wire_type.message, target, f"{path}.")
        self.path = path
