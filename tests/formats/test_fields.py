"""Rules of single values, and reading and writing of declared keys."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.domain.keys import ALWAYS, Key
from planner.errors import ParameterError
from planner.formats.fields import (
    Field,
    FieldError,
    Flag,
    ListOf,
    MapOf,
    Name,
    Nullable,
    Number,
    OneOf,
    Table,
    Text,
    Type,
    Whole,
)
from planner.units import KEY_UNITS

Validate = Callable[[dict[str, Any], Any], str]
LINK = Table(
    Field("bandwidth_GBps", Number("GBps", above=True), "rate", into="bytes_per_s"),
    Field("latency_us", Number("us"), "delay", 0.0, "latency_s"),
)
RULES: list[tuple[Type, list[Any], list[Any]]] = [
    (Text(), ["a"], ["", 1, None, True, ["a"]]),
    (Text(empty=True), ["a", ""], [0, None]),
    (Text(("a", "b")), ["a"], ["c", "", 1]),
    (Flag(), [True, False], [0, 1, "true", None]),
    (Whole(), [1, 10**9], [0, -1, 10**9 + 1, 1.0, "1", True, None]),
    (Number(), [0, 1.5, 1e-99, 1e99], [1e101, -1, math.nan, math.inf, "1", True, None]),
    (Number(above=True), [1e-9], [0, -1.0]),
    (Number(signed=True), [-2.5, 0, 1e99], [-math.inf, math.nan, -1e101]),
    (Number("GiB", above=True), [16, 0.5], [0, 1e-7, 1e9, "16GiB"]),
    (Number("share"), [0, 5e-324, 1], [1.1, -0.1]),
    (Nullable(Whole()), [None, 3], [0, "3"]),
    (OneOf((Whole(), Text())), [3, "a"], [0, "", [1], None]),
    (ListOf(Whole(), 2, 2), [[1, 2]], [[], [1], [1, 2, 3], [1, 0], 1, "12"]),
    (MapOf(Number(), choices=("fp32",)), [{"fp32": 1.0}, {}], [{"fp23": 1.0}, {"fp32": -1}, [1]]),
    (MapOf(Number(), pattern="[0-9]+"), [{"12": 1.0}], [{"a": 1.0}]),
]
CASES = [(kind, good, True) for kind, goods, _ in RULES for good in goods] + [
    (kind, bad, False) for kind, _, bads in RULES for bad in bads
]


@pytest.mark.parametrize(("kind", "value", "allowed"), CASES)
def test_reader_and_schema_allow_the_same_values(validate: Validate, kind: Type, value: Any, *, allowed: bool) -> None:
    if allowed:
        kind.read(value, "here")
    else:
        with pytest.raises(FieldError, match=r"^here.* must "):
            kind.read(value, "here")
    # JSON has neither NaN nor infinity, so schemas need no rule for them; to a schema 1.0 is a whole number.
    if not isinstance(value, float) or (math.isfinite(value) and not isinstance(kind, Whole)):
        assert (validate(kind.schema(), value) == "") == allowed


@pytest.mark.parametrize("unit", KEY_UNITS)
@given(number=st.floats(1e-3, 1.0))
def test_numbers_with_a_unit_come_back_exactly(unit: str, number: float) -> None:
    kind = Number(unit)
    value = kind.read(number, "")
    assert kind.read(kind.write(value), "") == value


@pytest.mark.parametrize(
    ("unit", "number", "value"),
    [("GBps", 12.5, 12.5e9), ("GiB", 16, 2.0**34), ("us", 3, 3e-6), ("TFLOPps", 15.7, 15.7e12)],
)
def test_units_are_the_advertised_ones(unit: str, number: float, value: float) -> None:
    assert Number(unit).read(number, "") == value
    assert Number(unit).write(value) == number


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_written_as_null(value: float) -> None:
    assert Number(signed=True).write(value) is None


def test_table_converts_units_and_fills_defaults() -> None:
    assert LINK.read({"bandwidth_GBps": 25}, "") == {"bytes_per_s": 25e9, "latency_s": 0.0}
    assert LINK.write({"bytes_per_s": 25e9, "latency_s": 0.0}) == {"bandwidth_GBps": 25.0}


@pytest.mark.parametrize(
    ("keys", "place", "problem"),
    [
        ({"bandwith_GBps": 25}, "links.bandwith_GBps", "did you mean 'bandwidth_GBps'"),
        ({"bandwidth": 25}, "links.bandwidth", "with its unit, 'bandwidth_GBps'"),
        ({"bandwidth_Gbps": 25}, "links.bandwidth_Gbps", "with its unit, 'bandwidth_GBps'"),
        ({"bandwidth_GBps": 25, "zzz": 1}, "links.zzz", "known: bandwidth_GBps, latency_us"),
        ({}, "links.bandwidth_GBps", r"must be given \(rate\)"),
        ({"bandwidth_GBps": "25GB/s"}, "links.bandwidth_GBps", "the unit stands in the key.*got '25GB/s'"),
        ({"bandwidth_GBps": -25}, "links.bandwidth_GBps", "must be a number of GBps from 0.001.*got -25"),
        (3, "links", "must be a table, got 3"),
    ],
)
def test_table_names_the_place_and_the_remedy(keys: Any, place: str, problem: str) -> None:
    with pytest.raises(FieldError, match=problem) as caught:
        LINK.read(keys, "links")
    assert caught.value.place == place


def test_rule_of_a_record_becomes_an_error_at_its_table() -> None:
    def refuse(**values: Any) -> None:
        raise ParameterError("a", "less than b", values["a"])

    table = Table(Field("a", Whole(), "a"), make=refuse)
    with pytest.raises(FieldError, match="a must be less than b, got 2") as caught:
        ListOf(table).read([{"a": 2}], "rows")
    assert caught.value.place == "rows[0]"


@pytest.mark.parametrize("make", [lambda: Table(Field("a", Whole(), "a", 1))])
def test_default_is_left_out_when_written_and_filled_in_when_read(make: Callable[[], Table[dict[str, Any]]]) -> None:
    assert make().write({"a": 1}) == {}
    assert make().read({}, "") == {"a": 1}


@dataclass(frozen=True, slots=True)
class Part:
    """A record inside another."""

    name: Annotated[str, Key("name", is_name=True)]
    bytes_per_s: Annotated[float, Key("rate", name="rate_GBps")] = 0.0


@dataclass(frozen=True, slots=True)
class Record:
    """A record whose annotations are its keys."""

    parts: Annotated[tuple[Part, ...], Key("parts", size=(1, 2))]
    best: Annotated[Part | None, Key("one of them")] = None
    spread: Annotated[float | None, Key("null: none", absent=ALWAYS, signed=True)] = None
    ends: Annotated[Mapping[str, tuple[float, float]], Key("ends", pattern="[a-z]+")] = field(default_factory=dict)
    runs: Annotated[int, Key("runs", least=0)] = 0
    inside: str = "is in no document"


RECORD = Table.of(Record)
KEYS = {"parts": [{"name": "a", "rate_GBps": 2.0}], "spread": None}


def test_annotations_of_a_record_are_its_keys() -> None:
    whole = Record((Part("a", 2e9),), Part("b"), -1.0, {"x": (1.0, 2.0)}, 3)
    written = RECORD.write(whole)
    assert written == {
        "parts": [{"name": "a", "rate_GBps": 2.0}],
        "best": {"name": "b"},
        "spread": -1.0,
        "ends": {"x": [1.0, 2.0]},
        "runs": 3,
    }
    assert RECORD.read(written, "") == whole
    assert RECORD.write(Record((Part("a", 2e9),))) == KEYS
    assert RECORD.read(KEYS, "") == Record((Part("a", 2e9),))
    assert list(RECORD.schema()["properties"]) == ["parts", "best", "spread", "ends", "runs"]
    assert RECORD.schema()["required"] == ["parts", "spread"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"parts": []}, "parts: value must be a list of 1 to 2 values"),
        ({"parts": [{"name": "a\n"}]}, r"parts\[0\].name: .* must be a name without control characters"),
        ({"parts": [{"name": "a", "rate": 1}]}, "with its unit, 'rate_GBps'"),
        ({"ends": {"x": [1.0]}}, "ends.x: value must be a list of 2 to 2 values"),
        ({"ends": {"X": [1.0, 2.0]}}, "ends.X: key must match"),
        ({"runs": -1}, "runs: value must be a whole number from 0"),
        ({"inside": "x"}, "inside: key must be a known one"),
    ],
)
def test_rules_of_annotations_are_kept(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(FieldError, match=problem):
        RECORD.read(KEYS | change, "")


NUMBERS = st.one_of(
    st.floats(),
    st.integers(),
    st.booleans(),
    st.just("1"),
    st.none(),
    st.sampled_from([10**400, 1e300, 1e308, 0, -0.0]),
)
SINGLE = (Number(), Number(above=True), Number(signed=True), Number("us"), Number("GBps", above=True), Name())


def one_by_one(kind: Type, values: list[Any]) -> Any:
    """Return what reading each value gives, or the place of the first that is refused."""
    found = []
    for position, value in enumerate(values):
        try:
            found.append(kind.read(value, f"[{position}]"))
        except FieldError as error:
            return str(error)
    return tuple(found)


@pytest.mark.parametrize("kind", SINGLE)
@given(values=st.lists(st.floats() | st.integers(), max_size=5) | st.lists(NUMBERS | st.text(max_size=3), max_size=5))
def test_many_values_at_once_are_read_as_each_on_its_own(kind: Type, values: list[Any]) -> None:
    """Lists, tables with a key each, and lists of tables."""
    wanted = one_by_one(kind, values)
    rows = ListOf(Table(Field("a", kind, "a", into="b")))
    try:
        found: Any = ListOf(kind).read(values, "")
        assert MapOf(kind).read({f"k{at}": value for at, value in enumerate(values)}, "") == {
            f"k{at}": value for at, value in enumerate(found)
        }
        assert rows.read([{"a": value} for value in values], "") == tuple({"b": value} for value in found)
    except FieldError as error:
        found = str(error)
    assert found == wanted
