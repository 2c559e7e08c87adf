"""Keys of documents, declared once; reading, writing and JSON Schema are derived from the declaration.

A :class:`Table` of :class:`Field` is the declaration; its values have the types below and those of
:mod:`planner.formats.values`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from planner.errors import UsageError, nearest_name, shown
from planner.formats.values import UNITS, FieldError, Name, Type, at, refuse

__all__ = ["REQUIRED", "Field", "ListOf", "MapOf", "Nullable", "OneOf", "Table", "unknown_key", "without_none"]

R = TypeVar("R")
MOST_KEYS = 10_000
"""Of a table whose keys are names; the largest, ranges of a calibration's features, have dozens."""
REQUIRED: Any = object()
"""The default of a key that must be given."""


def without_none(**values: Any) -> dict[str, Any]:
    """Return the values of keys that have one."""
    return {key: value for key, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Nullable:
    """A value, or null where there is none."""

    type: Type

    @property
    def words(self) -> str:
        """The rule."""
        return f"{self.type.words}, or null"

    def read(self, value: Any, place: str) -> Any:
        """Return the value or None."""
        return None if value is None else self.type.read(value, place)

    def write(self, value: Any) -> Any:
        """Return the file's value or None."""
        return None if value is None else self.type.write(value)

    def schema(self) -> dict[str, Any]:
        """Return the schema with null added."""
        return {"anyOf": [self.type.schema(), {"type": "null"}]}


@dataclass(frozen=True, slots=True)
class OneOf:
    """A value of the first type that fits; ``rule`` says in short what those are."""

    types: tuple[Type, ...]
    title: str = ""
    rule: str = ""

    @property
    def words(self) -> str:
        """The rule."""
        return self.rule or " or ".join(kind.words for kind in self.types)

    def read(self, value: Any, place: str) -> Any:
        """Return what the first fitting type makes of it."""
        for kind in reversed(self.types) if isinstance(value, list) else self.types:  # lists of them are declared last
            try:
                return kind.read(value, place)
            except FieldError:
                continue
        return refuse(place, self.words, value)

    def write(self, value: Any) -> Any:
        """Return the value, tuples as lists."""
        return list(value) if isinstance(value, tuple) else value

    def schema(self) -> dict[str, Any]:
        """Return a schema with an alternative a type."""
        return _with_title(self.title, {"anyOf": [kind.schema() for kind in self.types]})


@dataclass(frozen=True, slots=True)
class ListOf:
    """From ``least`` to ``most`` values of one type; a tuple in records."""

    item: Type
    least: int = 0
    most: int | None = None

    @property
    def words(self) -> str:
        """The rule."""
        size = (
            f"{self.least} to {self.most} " if self.most is not None else f"at least {self.least} " * bool(self.least)
        )
        return f"a list of {size}values, each {self.item.words}"

    def read(self, value: Any, place: str) -> tuple[Any, ...]:
        """Return the values."""
        if not isinstance(value, list):
            refuse(place, self.words, value)
        if not self.least <= len(value) <= (self.most or len(value)):
            raise FieldError(place, f"value must be {self.words}, got a list of {len(value):,}")
        return tuple(_each(self.item, value, range(len(value)), place))

    def write(self, value: Any) -> list[Any]:
        """Return the file's values."""
        return [self.item.write(item) for item in value]

    def schema(self) -> dict[str, Any]:
        """Return a schema of type array."""
        bounds = {"minItems": self.least} | ({"maxItems": self.most} if self.most is not None else {})
        return {"type": "array", "items": self.item.schema()} | bounds


@dataclass(frozen=True, slots=True)
class MapOf:
    """Values of one type under names that match a regular expression, or are among ``choices``."""

    item: Type
    pattern: str = ".+"
    choices: tuple[str, ...] = ()

    words = "a table"

    def read(self, value: Any, place: str) -> dict[str, Any]:
        """Return the values by key."""
        if not isinstance(value, Mapping):
            refuse(place, self.words, value)
        if len(value) > MOST_KEYS:
            raise FieldError(place, f"table must be of at most {MOST_KEYS:,} keys, got {len(value):,}")
        _each(Name(empty=True), keys := list(value), keys, place)
        for key in keys:
            if self.choices and key not in self.choices:
                raise FieldError(at(place, key), unknown_key(key, self.choices))
            if not re.fullmatch(self.pattern, key):
                raise FieldError(at(place, key), f"key must match {self.pattern}, got {shown(key)}")
        return dict(zip(keys, _each(self.item, list(value.values()), keys, place), strict=True))

    def write(self, value: Any) -> dict[str, Any]:
        """Return the file's values by key."""
        return {str(key): self.item.write(item) for key, item in value.items()}

    def schema(self) -> dict[str, Any]:
        """Return a schema of type object."""
        rule = {"enum": list(self.choices)} if self.choices else {"pattern": f"^{self.pattern}$"}
        return {"type": "object", "propertyNames": rule, "additionalProperties": self.item.schema()}


def _each(kind: Type, values: Sequence[Any], keys: Sequence[str | int], place: str) -> Sequence[Any]:
    """Return what a type reads of values that stand at the keys of a place: all at once where it can.

    What is wrong with one of them is found by reading it on its own.
    """
    read_all = getattr(kind, "read_all", None)
    together: Sequence[Any] | None = read_all(values) if read_all else None
    return (
        [kind.read(value, at(place, key)) for key, value in zip(keys, values, strict=True)]
        if together is None
        else together
    )


def unknown_key(key: str, names: tuple[str, ...]) -> str:
    """Return the sentence about a key that is not known: its unit, the nearest one, or all of them."""
    stem = {name.rpartition("_")[0]: name for name in names if name.rpartition("_")[2] in UNITS and "_" in name}
    with_unit = stem.get(key) or stem.get(key.rpartition("_")[0])
    if with_unit:
        return f"key must be written with its unit, {with_unit!r}, got {shown(key)}"
    near = nearest_name(key, names)
    guess = f"did you mean {near!r}?" if near else f"known: {', '.join(sorted(names))}"
    return f"key must be a known one, got {shown(key)}; {guess}"


@dataclass(frozen=True, slots=True)
class Field:
    """A key of a table.

    Attributes
    ----------
    name : str
        The key, with the suffix of its unit.
    type : Type
    doc : str
        What it means, for the schema and for the error when it is missing.
    default : Any
        Record value where the key is absent; REQUIRED: it must be there.
    into : str
        Field of the record; empty: the key.
    """

    name: str
    type: Type
    doc: str
    default: Any = REQUIRED
    into: str = ""

    @property
    def target(self) -> str:
        """Field of the record."""
        return self.into or self.name


@dataclass(frozen=True, slots=True)
class Table(Generic[R]):
    """Keys that together are a record: ``make`` is called with one keyword argument a key, ``split`` undoes it.

    Without ``split`` the record has the keys' targets as fields, or is a mapping with them.

    An expected failure in ``make`` (a record's own rule) becomes a FieldError at the place of the table. A table with a
    ``title`` is written once in a schema, however often it is used. ``gone``: keys that it once had, with what to do.
    """

    fields: tuple[Field, ...]
    make: Callable[..., R]
    doc: str = ""
    title: str = ""
    split: Callable[[Any], Mapping[str, Any]] | None = None
    gone: Mapping[str, str] | None = None

    words = "a table"

    def read_all(self, values: Sequence[Any]) -> Sequence[R] | None:
        """Return the records of tables that have all the keys, and plainly right values; None: read them one by one."""
        names = {field.name for field in self.fields}
        if not values or any(type(value) is not dict or value.keys() != names for value in values):
            return None
        columns = []
        for field in self.fields:
            read_all = getattr(field.type, "read_all", None)
            columns.append(read_all([value[field.name] for value in values]) if read_all else None)
            if columns[-1] is None:
                return None
        targets = [field.target for field in self.fields]
        try:
            return [self.make(**dict(zip(targets, row, strict=True))) for row in zip(*columns, strict=True)]
        except UsageError:
            return None

    def read(self, value: Any, place: str) -> R:
        """Return the record of a table of a file."""
        if not isinstance(value, Mapping):
            refuse(place, self.words, value)
        names = tuple(field.name for field in self.fields)
        for key in value:
            if key not in names:
                raise FieldError(at(place, key), (self.gone or {}).get(key) or unknown_key(key, names))
        values = {field.target: _read_key(field, value, place) for field in self.fields}
        try:
            return self.make(**values)
        except UsageError as error:
            raise FieldError(place, error.refusal) from None

    def write(self, record: Any) -> dict[str, Any]:
        """Return the table of a record, or of a mapping with its fields; keys at their default are left out."""
        record = self.split(record) if self.split else record
        value_of = record.__getitem__ if isinstance(record, Mapping) else partial(getattr, record)
        table = {}
        for field in self.fields:
            value = value_of(field.into or field.name)
            if field.default is REQUIRED or (value is not None and value != field.default):
                table[field.name] = field.type.write(value)
        return table

    def schema(self) -> dict[str, Any]:
        """Return a schema of type object that allows no other key, or a reference to it."""
        return _with_title(self.title, self.keys_schema())

    def keys_schema(self) -> dict[str, Any]:
        """Return the schema itself."""
        properties = {field.name: field.type.schema() | {"description": field.doc} for field in self.fields}
        required = sorted(field.name for field in self.fields if field.default is REQUIRED)
        doc = {"description": self.doc} if self.doc else {}
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False} | doc


def _with_title(title: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Return a reference with its definition beside it; the kind of document gathers the definitions."""
    return {"$ref": f"#/$defs/{title}", "$defs": {title: schema}} if title else schema


def _read_key(field: Field, table: Mapping[str, Any], place: str) -> Any:
    if field.name in table:
        return field.type.read(table[field.name], at(place, field.name))
    if field.default is REQUIRED:
        raise FieldError(at(place, field.name), f"key must be given ({field.doc}), got nothing")
    return field.default
