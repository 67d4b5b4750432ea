"""Compile a message class and a version into a function that writes it."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

from cordwood.protocol.schema import Array, Field, Fixed, Sized, Struct, WireType, fields_of, string
from cordwood.protocol.source import Source
from cordwood.protocol.wire import Encode


def compile_encoder(cls: type[Any], version: int, flexible: bool) -> Encode:
    """Return the function that writes *version* of *cls*: ``encode(message)``, a list of one buffer.

    A field that the version does not have is left out, whatever it holds. The function raises ValueError,
    naming the field, for a value that its field cannot hold.
    """
    source = EncoderSource(cls, version, flexible)
    source.struct(cls, "message", "")
    source.flush()
    source.line("return [b''.join(out)]")
    encode: Encode = source.compile(
        "message", ["out = []", "w = out.append"], "WRITE_ERRORS", "unwritable(e)"
    )
    return encode


class EncoderSource(Source):
    """Source that appends the pieces of ``message`` to a list through ``w``."""

    def flush(self) -> None:
        """Write the fixed-size values collected in ``run`` with one line."""
        if not self.run:
            return
        codes = "".join(code for code, _, _ in self.run)
        values = ", ".join(value for _, value, _ in self.run if value)
        if codes == "x":
            self.line("w(b'\\0')")
        else:
            self.run_line(f"w({self.constant('pack', struct.Struct(f'>{codes}').pack)}({values}))")
        self.run.clear()

    def struct(self, cls: type[Any], source: str, path: str) -> None:
        """Write the message in the variable *source*."""
        fields = fields_of(cls, self.version)
        for each in fields:
            self.path = f"{path}{each.name}"
            if each.tag is None:
                self.value(each.type, f"{source}.{each.name}", self.version in each.nullable)
        self.path = path.rstrip(".")
        if self.flexible:
            self.tags([each for each in fields if each.tag is not None], source, path)

    def tags(self, known: Iterable[Field], source: str, path: str) -> None:
        """Write the tagged fields whose value is not the default, by rising tag."""
        ordered = sorted(known, key=lambda each: each.tag or 0)
        if not ordered:
            self.collect("x", "")
            return
        self.flush()
        tagged, outer, piece = self.fresh("tagged"), self.fresh("outer"), self.fresh("piece")
        self.line(f"{tagged} = []")
        self.line(f"{outer} = w")
        for each in ordered:
            self.path = f"{path}{each.name}"
            with self.block(f"if {source}.{each.name} != {self.default(each)}:"):
                self.line(f"w = ({piece} := []).append")
                self.value(each.type, f"{source}.{each.name}", self.version in each.nullable)
                self.flush()
                self.line(f"{tagged}.append((varint({each.tag}), b''.join({piece})))")
        self.path = path.rstrip(".")
        self.line(f"w = {outer}")
        self.line(f"w(varint(len({tagged})))")
        with self.block(f"for tag, {piece} in {tagged}:"):
            self.line(f"w(tag + varint(len({piece})) + {piece})")

    def value(self, wire_type: WireType, source: str, nullable: bool) -> None:
        """Write the value of the expression *source*."""
        if isinstance(wire_type, Fixed):
            self.collect(wire_type.code, source)
        elif nullable:
            self.flush()
            value = self.fresh("v")
            self.line(f"{value} = {source}")
            with self.block(f"if {value} is None:"):
                self.null(wire_type)
            with self.block("else:"):
                self.present(wire_type, value, True)
        else:
            self.present(wire_type, source, False)

    def null(self, wire_type: WireType) -> None:
        """Write null."""
        if isinstance(wire_type, Struct):
            self.collect("b", "-1")
        elif self.flexible:
            self.collect("x", "")
        else:
            self.collect(wire_type.code if isinstance(wire_type, Sized) else "i", "-1")

    def present(self, wire_type: WireType, source: str, nullable: bool) -> None:
        """Write a value that is not null."""
        if isinstance(wire_type, Struct):
            if nullable:
                self.collect("b", "1")
            self.struct(wire_type.message, source, f"{self.path}.")
            return
        value = self.fresh("v")
        self.line(f"{value} = {source}.encode()" if wire_type is string else f"{value} = {source}")
        if self.flexible:
            self.flush()
            self.line(f"w(varint(len({value}) + 1))")
        else:
            self.collect(wire_type.code if isinstance(wire_type, Sized) else "i", f"len({value})")
            self.flush()
        if isinstance(wire_type, Sized):
            self.line(f"w({value})")
        elif isinstance(wire_type, Array):
            self.elements(wire_type, value)

    def elements(self, array: Array, source: str) -> None:
        """Write the elements of an array, whose count was written."""
        if isinstance(array.element, Fixed) and len(array.element.code) == 1:
            self.line(f"w(pack('>%d{array.element.code}' % len({source}), *{source}))")
            return
        element, path = self.fresh("e"), self.path
        with self.block(f"for {element} in {source}:"):
            if isinstance(array.element, Struct):
                self.struct(array.element.message, element, f"{path}.")
            else:
                self.value(array.element, element, False)
        self.path = path
