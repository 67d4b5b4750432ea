"""How a setting is declared: once, as a field of a dataclass with its name, default, values and sentence."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

from cordwood.config.kinds import SettingKind, text_of
from cordwood.errors import InvalidSetting

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: what it is called, what it takes, and what it does.

    ``broker_kinds`` maps each name the broker's properties know it by, most important first, to how the
    text is read there: ``log.roll.hours`` counts hours where ``segment.ms`` counts milliseconds. It is empty
    for what only a topic can set. ``environment`` is the variable asked when no property is set, if there is
    one. ``kafka_kind`` is how Kafka reads the text, where Kafka takes values that cannot be honoured here:
    a topic is refused them, and a ``server.properties`` that has one gets a warning.
    """

    name: str
    kind: SettingKind[Any]
    default: Any
    sentence: str
    broker_kinds: Mapping[str, SettingKind[Any]]
    environment: str = ""
    kafka_kind: SettingKind[Any] | None = None
    attribute: str = ""

    @property
    def broker_name(self) -> str:
        """What the broker's properties call it, in the first place; the name itself if nothing does."""
        return next(iter(self.broker_kinds), self.name)

    def parse(self, text: str, name: str = "") -> Any:
        """Return the value of *text*, given under *name* (the setting's own if omitted).

        Raises:
            InvalidSetting: With the name, the text and what was expected.
        """
        kind = self.broker_kinds.get(name, self.kind)
        try:
            return kind.parse(text.strip())
        except ValueError:
            raise InvalidSetting(name or self.name, text, kind.expected) from None


def declare(
    name: str,
    kind: SettingKind[T],
    default: T,
    sentence: str,
    *,
    broker: str | Mapping[str, SettingKind[T]] | None = None,
    environment: str = "",
    kafka_kind: SettingKind[T] | None = None,
) -> T:
    """Declare a setting as a dataclass field.

    *broker* is its name in the broker's properties, if that is another one; several names, each with its
    kind; or an empty mapping if only a topic can set it.
    Like :func:`dataclasses.field` it claims to return the default, so that the type checker holds
    attribute, kind and default to one type.
    """
    if broker is None:
        broker = name
    kinds = {broker: kind} if isinstance(broker, str) else broker
    declared = Setting(name, kind, default, sentence, MappingProxyType(dict(kinds)), environment, kafka_kind)
    declaration: T = field(default=default, metadata={"setting": declared})
    return declaration


def declared_in(config: type[Any]) -> Mapping[str, Setting]:
    """Return the settings declared in *config* by name, each knowing its attribute."""
    found = [(f.name, f.metadata["setting"]) for f in dataclasses.fields(config) if "setting" in f.metadata]
    return MappingProxyType({s.name: dataclasses.replace(s, attribute=attribute) for attribute, s in found})


def check_values(config: Any) -> None:
    """Hold values set in code to the rules for text; raise InvalidSetting for the first that breaks them."""
    for declared in dataclasses.fields(config):
        if "setting" in declared.metadata:
            setting, value = declared.metadata["setting"], getattr(config, declared.name)
            try:
                valid = setting.kind.parse(text_of(value)) == value
            except ValueError:
                valid = False
            if not valid:
                raise InvalidSetting(setting.name, value, setting.kind.expected)
