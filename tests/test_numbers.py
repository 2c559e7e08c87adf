"""Numbers that were chosen: every record is read by the code, says why, and stands on its page."""

import re
from pathlib import Path

import pytest

import planner
from planner.numbers import constant, constants
from validation.numbers_page import PAGE, page, records

RECORDS = dict(records())


def names_in_code() -> list[tuple[str, str]]:
    """Return which function reads which record, of every call."""
    files = Path(planner.__file__).parent.rglob("*.py")
    text = "".join(path.read_text() for path in files if path.name != "numbers.py")
    return re.findall(r"\b(constants?)\(\"([a-z_.]+)\"\)", text)


def test_the_code_reads_every_record_as_what_it_is() -> None:
    kinds = {name: "constants" if isinstance(record["value"], dict) else "constant" for name, record in RECORDS.items()}
    assert {name: kind for kind, name in names_in_code()} == kinds


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_says_what_it_is_and_how_it_was_chosen(name: str) -> None:
    record = RECORDS[name]
    assert record.keys() == {"value", "means", "rows", "effect"}
    assert all(len(record[key]) > 5 for key in ("means", "rows", "effect"))
    value = record["value"]
    if isinstance(value, dict):
        assert constants(name) == pytest.approx(value)
    else:
        assert constant(name) == pytest.approx(value)


def test_the_committed_page_is_that_of_the_records() -> None:
    assert PAGE.read_text() == page()
