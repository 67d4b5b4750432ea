"""Compile a message class and a version into a function that encodes it."""

from __future__ import annotations

import struct
from collections.abc import Iterable
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
    fields_of,
    string,
)
from cordwood.protocol.source import SourceText
from cordwood.protocol.wire import Encode


def compile_encoder(cls: type[Any], version: int, flexible: bool) -> Encode:
    """Return the function that encodes *version* of *cls*: ``encode(message)``, a list of buffers.

    There is one buffer, except for record batches, which are passed through as separate buffers. Fields that
    the version does not have are left out. The function raises ValueError, which names the field, for an
    invalid value.
    """
    source = EncoderSource(cls, version, flexible)
    source.struct(cls, "message", "")
    source.flush()
    first = ["out = []", "w = out.append"]
    if source.passes_on:
        source.line("if out: done.append(b''.join(out))")
        source.line("return done")
        first.append("done = []")
    else:
        source.line("return [b''.join(out)]")
    encode: Encode = source.compile("message", first, "WRITE_ERRORS", "unwritable(e)")
    return encode


class EncoderSource(SourceText):
    """Source that appends the pieces of ``message`` to ``out`` through ``w``.

    If it ``passes_on`` record batches, they and the bytes before them are appended to ``done``.
    """

    passes_on = False

    def flush(self) -> None:
        """Write the fixed-size values collected in ``run`` with one line."""
        if not self.run:
            return
        codes = "".join(code for code, _, _ in self.run)
        values = ", ".join(value for _, value, _ in self.run if value)
        if all(value.lstrip("-").isdigit() for _, value, _ in self.run if value):
            constant = struct.pack(f">{codes}", *(int(value) for _, value, _ in self.run if value))
            self.line(f"w({constant!r})")
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
        """Write the tagged fields whose value is not the default, by ascending tag."""
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
        size = f"sum(map(len, {value}))" if wire_type is buffers else f"len({value})"
        if isinstance(wire_type, Array) and self.flexible:
            self.flush()
            with self.block(f"if not {value}:"):
                self.line("w(b'\\1')")
            with self.block("else:"):
                self.compact(size)
                self.elements(wire_type, value)
            return
        if self.flexible:
            self.flush()
            self.compact(size)
        else:
            self.collect(wire_type.code if isinstance(wire_type, Sized) else "i", size)
            self.flush()
        if wire_type in (batches, buffers):
            self.passes_on = True
            with self.block(f"if {value}:"):
                self.line("done.append(b''.join(out))")
                self.line(f"done.extend({value})" if wire_type is buffers else f"done.append({value})")
                self.line("out.clear()")
        elif isinstance(wire_type, Sized):
            self.line(f"w({value})")
        elif isinstance(wire_type, Array):
            self.elements(wire_type, value)

    def compact(self, size: str) -> None:
        """Write a compact length: the value of the expression *size* plus one. Most take one byte."""
        self.line(f"n = {size} + 1")
        self.line("w(SHORT_VARINTS[n] if n < 128 else varint(n))")

    def elements(self, array: Array, source: str) -> None:
        """Write the elements of an array after its count."""
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
