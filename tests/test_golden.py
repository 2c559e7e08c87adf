"""Golden answers: every request of ``tests/data/golden`` is answered as it was when its file was written.

A file holds the arguments of the command, its exit code, what it wrote to standard error, line by line, and its
answer: a JSON document, or the lines of a text. ``inputs`` is the working directory; the user has no data folder, and
text is 80 columns wide. Structure and text must be the same; numbers agree within EXACT, and within FITTED where a fit
or an interval gives them.

    python tests/test_golden.py [NAME...]

writes the answers of today into all files, or into those of NAME. A new request is a file of its ``arguments`` alone.
"""

from __future__ import annotations

import io
import json
import math
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from planner.cli.main import main
from planner.formats.documents import dump_json

FOLDER = Path(__file__).parent / "data" / "golden"
EXACT, FITTED = 1e-9, 1e-6
"""Largest relative difference of a number."""
NOTHING = 1e-15
"""Largest difference of numbers that are 0 but for rounding, such as an all-reduce that is hidden."""
OF_FITS = ("low", "high", "deviation", "doubt", "probability_first_better", "probability_in_window")
"""Keys of numbers, or of what holds them, that refits and interval ends give; so is all of a validation."""
FEW = 5
"""Differences that a failure shows."""


def answered(arguments: Sequence[str], data_home: Path) -> dict[str, Any]:
    """Return what the command line says to arguments, as a golden file holds it."""
    out, err = io.StringIO(), io.StringIO()
    environment = os.environ | {"XDG_DATA_HOME": str(data_home), "COLUMNS": "80", "NO_COLOR": "1"}
    environment.pop("FORCE_COLOR", None)
    with (
        patch.dict(os.environ, environment, clear=True),
        chdir(FOLDER / "inputs"),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        code = main(list(arguments))
    text = out.getvalue()
    answer = json.loads(text) if "--json" in arguments and text else text.splitlines()
    return {"arguments": list(arguments), "code": code, "messages": err.getvalue().splitlines(), "answer": answer}


def differences(wanted: Any, given: Any, within: float = EXACT, place: str = "") -> Iterator[str]:
    """Yield the places where an answer is not what it was, with both values."""
    if isinstance(wanted, Mapping) and isinstance(given, Mapping):
        yield from (f"{place}.{key}: {'gone' if key in wanted else 'new'}" for key in sorted(wanted.keys() ^ given))
        for key in (one for one in wanted if one in given):
            yield from differences(wanted[key], given[key], FITTED if key in OF_FITS else within, f"{place}.{key}")
    elif isinstance(wanted, list) and isinstance(given, list):
        if len(wanted) != len(given):
            yield f"{place}: {len(wanted)} items -> {len(given)}"
        for at, (one, other) in enumerate(zip(wanted, given, strict=False)):
            yield from differences(one, other, within, f"{place}[{at}]")
    elif not _is_same(wanted, given, within):
        yield f"{place}: {wanted!r} -> {given!r}"


def _is_same(wanted: Any, given: Any, within: float) -> bool:
    if isinstance(wanted, float) and isinstance(given, float):
        return math.isclose(wanted, given, rel_tol=within, abs_tol=NOTHING)
    return type(wanted) is type(given) and bool(wanted == given)


@pytest.mark.parametrize("name", [path.stem for path in sorted(FOLDER.glob("*.json"))])
def test_an_answer_is_what_it_was(name: str, tmp_path: Path) -> None:
    wanted = json.loads((FOLDER / f"{name}.json").read_text())
    given = answered(wanted["arguments"], tmp_path)
    within = FITTED if wanted["arguments"][0] == "validate" else EXACT
    found = list(differences(wanted, given, within))
    shown = "\n".join(found[:FEW])
    assert not found, f"{len(found)} differences; the first {min(len(found), FEW)}:\n{shown}"


@pytest.mark.parametrize(
    ("wanted", "given", "found"),
    [
        ({"a": 1.0}, {"a": 1.0 + 5e-10}, []),
        ({"a": 1.0}, {"a": 1.0 + 5e-9}, [".a: 1.0 -> 1.000000005"]),
        ({"low": 1.0, "doubt": {"host": 1.0}}, {"low": 1.0 + 5e-7, "doubt": {"host": 1.0 + 5e-7}}, []),
        ({"low": 1.0}, {"low": 1.00001}, [".low: 1.0 -> 1.00001"]),
        ({"a": [1, 2]}, {"a": [1]}, [".a: 2 items -> 1"]),
        ({"a": 1, "b": 2}, {"b": 2, "c": 3}, [".a: gone", ".c: new"]),
        ({"a": 1}, {"a": 1.0}, [".a: 1 -> 1.0"]),
        (["so"], ["So"], ["[0]: 'so' -> 'So'"]),
    ],
)
def test_differences_are_seen_and_rounding_is_not(wanted: Any, given: Any, found: list[str]) -> None:
    assert list(differences(wanted, given)) == found


def test_the_answers_cover_what_they_should() -> None:
    every = [json.loads(path.read_text()) for path in FOLDER.glob("*.json")]
    shares = {name for one in every for name in _shares(one["answer"])}
    assert len(every) >= 50
    assert {one["code"] for one in every} == {0, 2, 4, 5}
    assert shares == {"exact", "between", "beyond", "regression", "sibling", "specification"}
    assert str(FOLDER.parents[2]) not in "".join(path.read_text() for path in FOLDER.glob("*.json"))


def _shares(answer: Any) -> Iterator[str]:
    """Yield by what ways kernels of an answer were looked up."""
    items = answer.items() if isinstance(answer, Mapping) else enumerate(answer) if isinstance(answer, list) else ()
    for key, value in items:
        yield from value if key == "kernel_shares" else _shares(value)


def rewrite(names: Sequence[str]) -> None:
    """Write the answers of today into the files of names, or into all."""
    for path in sorted(FOLDER.glob("*.json")):
        if not names or path.stem in names:
            old = json.loads(path.read_text())
            with tempfile.TemporaryDirectory() as folder:
                new = answered(old["arguments"], Path(folder))
            changed = len(list(differences(old, new)))
            path.write_text(dump_json(new))
            sys.stdout.write(f"{path.stem}: exit code {new['code']}, {changed} differences\n")


if __name__ == "__main__":
    rewrite(sys.argv[1:])
