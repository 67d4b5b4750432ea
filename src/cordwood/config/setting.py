"""Declaration of settings: one dataclass field each, with name, default, accepted values and sentence."""

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
class Secret:
    """A value that is never shown: not in a text, an error or an answer to a client."""

    value: str

    def __str__(self) -> str:
        return "[hidden]" if self.value else ""

    def __repr__(self) -> str:
        return f"Secret({str(self)!r})"


NO_SECRET = Secret("")


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: its name, accepted values, default and description.

    ``broker_kinds`` maps each name of the setting in the broker's properties, highest precedence first, to
    the kind that parses it: ``log.roll.hours`` counts hours, ``segment.ms`` milliseconds. It is empty for a
    setting that only a topic can have. ``environment`` names the variable that is read when no property is
    set, or is empty. ``kafka_kind`` is Kafka's kind, for a setting that accepts values in Kafka which
    Cordwood cannot honour: a topic with such a value is refused, a ``server.properties`` with one loads with
    a warning.
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
    def secret(self) -> bool:
        """Whether its value is never shown."""
        return isinstance(self.default, Secret)

    @property
    def broker_name(self) -> str:
        """The first name in the broker's properties; the setting's own name if it has none there."""
        return next(iter(self.broker_kinds), self.name)

    def parse(self, text: str, name: str = "") -> Any:
        """Return the value of *text*, given under *name* (the setting's own if omitted).

        Raises:
            InvalidSetting: If the setting does not accept *text*.
        """
        kind = self.broker_kinds.get(name, self.kind)
        try:
            return kind.parse(text.strip())
        except AttributeError:
            # A program may give a number where a file has its digits.
            given = "[hidden]" if self.secret else text
            raise InvalidSetting(name or self.name, given, f"text, here {str(given)!r}") from None
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

    *broker* is the name in the broker's properties if it differs; or a mapping of several names to their
    kinds; or an empty mapping if only a topic can have the setting.
    Like :func:`dataclasses.field`, the function is typed as if it returned the default, so that the type
    checker requires one type for attribute, kind and default.
    """
    if broker is None:
        broker = name
    kinds = {broker: kind} if isinstance(broker, str) else broker
    declared = Setting(name, kind, default, sentence, MappingProxyType(dict(kinds)), environment, kafka_kind)
    declaration: T = field(default=default, metadata={"setting": declared})
    return declaration


def declared_in(config: type[Any]) -> Mapping[str, Setting]:
    """Return the settings declared in *config* by name, each with its ``attribute`` filled in."""
    found = [(f.name, f.metadata["setting"]) for f in dataclasses.fields(config) if "setting" in f.metadata]
    return MappingProxyType({s.name: dataclasses.replace(s, attribute=attribute) for attribute, s in found})


def check_values(config: Any) -> None:
    """Validate the values of *config* by the rules for text.

    Raises:
        InvalidSetting: For the first invalid value.
    """
    for declared in dataclasses.fields(config):
        if "setting" in declared.metadata:
            setting, value = declared.metadata["setting"], getattr(config, declared.name)
            if isinstance(value, Secret) and setting.secret:
                continue
            try:
                valid = setting.kind.parse(text_of(value)) == value
            except ValueError:
                valid = False
            if not valid:
                raise InvalidSetting(setting.name, value, setting.kind.expected)
