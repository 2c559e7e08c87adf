"""Keys of documents, declared once; reading, writing and JSON Schema are derived from the declaration.

A *type* is any object with ``words`` (the rule, continuing "must be"), ``read`` (file value -> record value, or
FieldError with the place), ``write`` (the inverse) and ``schema``. Single values, lists, maps and a :class:`Table` of
:class:`Field` are types; :meth:`Table.of` a record has the keys that its annotations declare. Numbers with a unit are
SI in records; in files the unit is the suffix of their key.
"""

from __future__ import annotations

import dataclasses
import math
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import NoneType
from typing import Any, Generic, NoReturn, Protocol, TypeVar, get_args, get_origin, overload

from planner.domain.arrays import LARGEST_COUNT
from planner.domain.keys import ALWAYS, Key
from planner.errors import Refusal, UsageError, hidden, nearest_name, shown
from planner.units import KEY_UNITS, KeyUnit

LONGEST_NAME = 200
"""Characters of a name: it is to stand in a table and in a sentence."""
LARGEST_WHOLE = 10**300


class FieldError(Exception):
    """A value that its key does not allow; the reader of the file adds the path."""

    def __init__(self, place: str, problem: str | Refusal) -> None:
        super().__init__(f"{place}: {problem}")
        self.place, self.problem = place, problem


class Type(Protocol):
    """What a value of a key may be; one with ``read_all`` takes many values at once."""

    @property
    def words(self) -> str:
        """The rule, continuing the words "must be"."""

    def read(self, value: Any, place: str) -> Any:
        """Return the record's value, or raise FieldError."""

    def write(self, value: Any) -> Any:
        """Return the file's value of a record's value."""
        return value

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema."""


def at(place: str, key: str | int) -> str:
    """Return the place of a key, or of a position, inside another place."""
    if isinstance(key, int):
        return f"{place}[{key}]"
    return f"{place}.{key}" if place else key


def refuse(place: str, rule: str, value: Any) -> NoReturn:
    """Raise the FieldError of a value that breaks its rule."""
    raise FieldError(place, Refusal("value", f"value must be {rule}", place, received(value)))


def received(value: Any) -> str:
    """Return a value of a file as a sentence repeats it."""
    if isinstance(value, Mapping | list):
        return "a table" if isinstance(value, Mapping) else "a list"
    return "nothing" if value is None else str(value).lower() if isinstance(value, bool) else shown(value)


@dataclass(frozen=True, slots=True)
class Text(Type):
    """A string; one of ``choices`` where there are any, and not empty unless ``empty``."""

    choices: Collection[str] = ()
    empty: bool = False

    @property
    def words(self) -> str:
        """The rule."""
        return "one of " + ", ".join(self.choices) if self.choices else "text"

    def read(self, value: Any, place: str) -> str:
        """Return the text."""
        choices = self.choices or (value,)
        if not isinstance(value, str) or value not in choices or not (value or self.empty):
            refuse(place, "text that is not empty" if value == "" and not self.choices else self.words, value)
        if hidden(value, on_one_line=False):
            refuse(place, "text without control characters", value)
        return value

    def schema(self) -> dict[str, Any]:
        """Return a schema of type string."""
        rule: dict[str, Any] = {"enum": list(self.choices)} if self.choices else {}
        return {"type": "string"} | rule | ({} if self.empty or self.choices else {"minLength": 1})


@dataclass(frozen=True, slots=True)
class Name(Text):
    """What something is called: text on one line, shown as it is, of at most LONGEST_NAME characters."""

    def read_all(self, values: Sequence[Any]) -> Sequence[str] | None:
        """Return names that are plainly right; None where each is to be read on its own."""
        if not set(map(type, values)) <= {str} or not all(map(str.isprintable, values)):
            return None
        least, most = min(map(len, values), default=1), max(map(len, values), default=1)
        return values if (least or self.empty) and most <= LONGEST_NAME else None

    def read(self, value: Any, place: str) -> str:
        """Return the name."""
        name = Text.read(self, value, place)
        if hidden(name):
            refuse(place, "a name without control characters or hidden ones", name)
        if len(name) > LONGEST_NAME:
            raise FieldError(place, f"name must be of at most {LONGEST_NAME} characters, got {len(name):,}")
        return name

    def schema(self) -> dict[str, Any]:
        """Return a schema of type string."""
        return Text.schema(self) | {"maxLength": LONGEST_NAME}


@dataclass(frozen=True, slots=True)
class Flag(Type):
    """True or false."""

    words = "true or false"

    def read(self, value: Any, place: str) -> bool:
        """Return the flag."""
        if not isinstance(value, bool):
            refuse(place, self.words, value)
        return value

    def schema(self) -> dict[str, Any]:
        """Return a schema of type boolean."""
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class Whole(Type):
    """A whole number from ``least`` to ``most``; LARGEST_WHOLE is the most of one whose owner knows the limit."""

    least: int = 1
    most: int = LARGEST_COUNT

    @property
    def words(self) -> str:
        """The rule."""
        limits = f"from {self.least} to {self.most}" if self.most != LARGEST_WHOLE else f"of at least {self.least}"
        return f"a whole number {limits}"

    def read(self, value: Any, place: str) -> int:
        """Return the number."""
        if isinstance(value, bool) or not isinstance(value, int) or not self.least <= value <= self.most:
            refuse(place, self.words, value)
        return value

    def write(self, value: Any) -> int:
        """Return the number."""
        return int(value)

    def schema(self) -> dict[str, Any]:
        """Return a schema of type integer."""
        most = {"maximum": self.most} if self.most != LARGEST_WHOLE else {}
        return {"type": "integer", "minimum": self.least} | most


@dataclass(frozen=True, slots=True)
class Number(Type):
    """A number of a unit: 0 unless ``above``, or of a size that the unit makes sense of; negative where ``signed``."""

    unit: str = ""
    above: bool = False
    signed: bool = False

    @property
    def scale(self) -> KeyUnit:
        """The unit."""
        return KEY_UNITS[self.unit]

    @property
    def words(self) -> str:
        """The rule."""
        least, most = self.scale.least, self.scale.most
        unit = f" of {self.unit}" * (self.unit != self.scale.dimension)
        zero, sign = "0, or " * bool(least and not self.above), ", of either sign" * self.signed
        return f"{zero}a number{unit} from {least:.3g} to {most:.3g}{sign}"

    def read_all(self, values: Sequence[Any]) -> Sequence[float] | None:
        """Return numbers in SI that are plainly right; None where each is to be read on its own."""
        if not set(map(type, values)) <= {float, int}:
            return None
        if not all(map(self._is_lawful, values)):
            return None
        scale = self.scale
        return [float(value) * scale.times / scale.over for value in values] if self.unit else list(map(float, values))

    def read(self, value: Any, place: str) -> float:
        """Return the number in SI."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            in_key = isinstance(value, str) and self.unit != self.scale.dimension
            refuse(place, self.words + " (the unit stands in the key)" * in_key, value)
        if not self._is_lawful(value):
            refuse(place, self.words, value)
        return float(value) * self.scale.times / self.scale.over

    def _is_lawful(self, value: float) -> bool:
        scale, size = self.scale, abs(value) if self.signed else value
        return scale.least <= size <= scale.most or (size == 0 and not self.above)

    def write(self, value: Any) -> float | None:
        """Return the shortest number of units that reads as this; None: it is not finite; 0: it underflows."""
        number, scale = float(value), self.scale
        if not math.isfinite(number):
            return None
        exact = number * scale.over / scale.times
        if not self.above and abs(exact) < scale.least:
            return 0.0
        if scale.times == scale.over == 1.0:
            return number
        short = (float(f"{exact:.{digits}g}") for digits in (15, 16)) if self.unit else ()
        near = (*short, exact, math.nextafter(exact, 0), math.nextafter(exact, math.inf))
        return next((guess for guess in near if guess * scale.times / scale.over == number), exact)

    def schema(self) -> dict[str, Any]:
        """Return a schema of type number."""
        least, most = self.scale.least, self.scale.most
        return {"type": "number", "minimum": least if self.above else -most if self.signed else 0, "maximum": most}


R = TypeVar("R")
MOST_KEYS = 10_000
"""Of a table whose keys are names; the largest, ranges of a calibration's features, have dozens."""
REQUIRED: Any = ALWAYS
"""The default of a key that must be given."""


def values_of(record: Any, **others: Any) -> dict[str, Any]:
    """Return the fields of a record by name, and ``others`` beside or instead of them."""
    return {one.name: getattr(record, one.name) for one in dataclasses.fields(record)} | others


def record_of(record: type[R], keys: Mapping[str, Any], **others: Any) -> R:
    """Return a record of the keys that are fields of it, and of ``others`` beside or instead of them."""
    return record(**{one.name: keys[one.name] for one in dataclasses.fields(record) if one.name in keys} | others)  # type: ignore[arg-type]


def without_none(**values: Any) -> dict[str, Any]:
    """Return the values of keys that have one."""
    return {key: value for key, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Nullable(Type):
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
class OneOf(Type):
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
class ListOf(Type):
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
class MapOf(Type):
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
    """Return what a type reads of values at the keys of a place: all at once where all are plainly right."""
    read_all = getattr(kind, "read_all", None)
    together: Sequence[Any] | None = read_all(values) if read_all else None
    return (
        [kind.read(value, at(place, key)) for key, value in zip(keys, values, strict=True)]
        if together is None
        else together
    )


def unknown_key(key: str, names: tuple[str, ...]) -> str:
    """Return the sentence about a key that is not known: its unit, the nearest one, or all of them."""
    stem = {name.rpartition("_")[0]: name for name in names if name.rpartition("_")[2] in KEY_UNITS and "_" in name}
    with_unit = stem.get(key) or stem.get(key.rpartition("_")[0])
    if with_unit:
        return f"key must be written with its unit, {with_unit!r}, got {shown(key)}"
    near = nearest_name(key, names)
    guess = f"did you mean {near!r}?" if near else f"known: {', '.join(sorted(names))}"
    return f"key must be a known one, got {shown(key)}; {guess}"


@dataclass(frozen=True, slots=True)
class Field:
    """A key of a table: its name with the suffix of its unit, its type, and what it means, for schema and errors.

    ``default``: record value where the key is absent, REQUIRED where it must be there; ``into``: field of the record,
    where it is not called as the key.
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


class Table(Type, Generic[R]):
    """Keys that together are a record, a dictionary unless ``make`` makes it, of one keyword argument a key.

    An expected failure of ``make`` (a record's own rule) is a FieldError at the place of the table. ``split`` undoes
    it; without it the record has the keys' targets as fields, or is a mapping with them. A table with a ``title`` is
    written once in a schema, however often it is used. ``gone``: keys that it once had, with what to do.
    ``optional``: every key may be absent, and is None then.
    """

    words = "a table"

    @overload
    def __init__(self: Table[dict[str, Any]], *fields: Field | Table[Any], doc: str = "", title: str = "") -> None: ...
    @overload
    def __init__(
        self, *fields: Field | Table[Any], make: Callable[..., R], doc: str = "", title: str = "",
        split: Callable[[Any], Mapping[str, Any]] | None = None, gone: Mapping[str, str] | None = None,
        record: type | None = None, omit: Collection[str] = (), optional: bool = False,
    ) -> None: ...  # fmt: skip

    def __init__(
        self, *fields: Field | Table[Any], make: Callable[..., Any] = dict, doc: str = "", title: str = "",
        split: Callable[[Any], Mapping[str, Any]] | None = None, gone: Mapping[str, str] | None = None,
        record: type | None = None, omit: Collection[str] = (), optional: bool = False,
    ) -> None:  # fmt: skip
        self.record, self.omitted, self.optional = record, omit, optional
        self.own, self.doc, self.title, self.split, self.gone = fields, doc, title, split, gone
        self.make: Callable[..., R] = make

    @overload
    @staticmethod
    def of(record: type, *fields: Field | Table[Any], make: Callable[..., Any], **options: Any) -> Table[Any]: ...
    @overload
    @staticmethod
    def of(record: type[R], *fields: Field | Table[Any], **options: Any) -> Table[R]: ...

    @staticmethod
    def of(record: type, *fields: Field | Table[Any], make: Callable[..., Any] | None = None, **options: Any) -> Any:
        """Return the table of a record; the first one is used wherever another record holds such a record.

        Its keys are ``fields``, and those that the annotations of the record declare, but for those of fields in
        ``omit`` and what ``fields`` say otherwise.
        """
        table: Table[Any] = Table(*fields, make=make or record, record=record, **options)
        _TABLES.setdefault(record, table)
        return table

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        """The keys; those of a record, and of tables among them, are found when they are first asked for."""
        own = [one for each in self.own for one in (each.fields if isinstance(each, Table) else (each,))]
        declared = (one for one in _declared(self.record) if one.target not in self.omitted) if self.record else ()
        every = ({one.target: one for one in declared} | {one.target: one for one in own}).values()
        return tuple(dataclasses.replace(one, default=None) if self.optional else one for one in every)

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
        values = {}
        for field in self.fields:
            if field.name in value:
                values[field.target] = field.type.read(value[field.name], at(place, field.name))
            elif field.default is REQUIRED:
                raise FieldError(at(place, field.name), f"key must be given ({field.doc}), got nothing")
            else:
                values[field.target] = field.default
        try:
            return self.make(**values)
        except UsageError as error:
            raise FieldError(place, error.refusal) from None

    def write(self, record: Any) -> dict[str, Any]:
        """Return the table of a record, or of a mapping with its fields.

        Keys that are None or at their default are left out; a mapping need not have them.
        """
        is_mapping, table = isinstance(record, Mapping), {}
        if self.split and not is_mapping:
            record, is_mapping = self.split(record), True
        for field in self.fields:
            target, is_required = field.target, field.default is REQUIRED
            if is_mapping and not is_required and target not in record:
                continue
            value = record[target] if is_mapping else getattr(record, target)
            if is_required or (value is not None and value != field.default):
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


_TABLES: dict[type, Table[Any]] = {}
"""Records -> the tables of what other records hold of them."""


def _declared(record: type) -> Iterator[Field]:
    """Yield the keys that the annotations of a record declare; names in them are those of its module."""
    names = vars(sys.modules[record.__module__])
    for one in dataclasses.fields(record):
        if str(one.type).startswith("Annotated["):
            # NOTE: typing.get_type_hints takes five times as long, 10 ms of a suggestion.
            annotation = eval(str(one.type), names)  # noqa: S307 - of this program
            hint, key = get_args(annotation)
            kind, default = _type_of(hint, key), key.absent(one)
            if key.null or (default is REQUIRED and NoneType in get_args(hint)):
                kind = Nullable(kind)
            yield Field(key.name or one.name, kind, key.doc, default, one.name)


def _type_of(hint: Any, key: Key) -> Type:
    """Return the type of an annotation with its key; None, if it may be that, is left to the key."""
    inner, some = get_origin(hint), [one for one in get_args(hint) if one not in (NoneType, Ellipsis)]
    if NoneType in get_args(hint):
        return _type_of(some[0], key)
    if inner is tuple:
        size = key.size if Ellipsis in get_args(hint) else (len(some), len(some))
        return ListOf(_type_of(some[0], key), *size)
    if inner is not None:
        return MapOf(_type_of(some[1], key), key.pattern, key.keys)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _TABLES.get(hint) or Table.of(hint)
    rule, unit = dict(key.rule), key.name.rpartition("_")[2]
    if hint is float and unit in KEY_UNITS:
        rule.setdefault("unit", unit)
    of_text = Name if rule.pop("is_name", False) else Text
    single: Mapping[Any, Callable[..., Type]] = {bool: Flag, int: Whole, float: Number, str: of_text}
    return single[hint](**rule)
