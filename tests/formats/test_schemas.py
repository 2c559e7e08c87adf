"""Shipped schemas are the emitted ones, and documents of the program match them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import planner
from planner.domain.prediction import Prediction
from planner.domain.request import Subject
from planner.domain.suggestion import Suggestion
from planner.errors import UnknownNameError
from planner.formats.documents import dump_json
from planner.formats.prediction import prediction_document, predictions_document
from planner.formats.schemas import KINDS, schema, write_schemas
from planner.formats.suggestion import suggestion_document, suggestions_document

Validate = Callable[[dict[str, Any], Any], str]
SHIPPED = Path(planner.__file__).parent / "_bundled" / "schemas"


def test_shipped_schemas_are_those_emitted() -> None:
    assert {path.name: path.read_text() for path in SHIPPED.iterdir()} == {
        f"{kind}.json": dump_json(schema(kind)) for kind in KINDS
    }


@pytest.mark.parametrize("kind", KINDS)
def test_schema_is_a_schema(validate: Validate, kind: str) -> None:
    assert validate({"$ref": "https://json-schema.org/draft/2020-12/schema"}, schema(kind)) == ""
    assert validate(schema(kind), {"format": f"planner/{kind}", "version": 99}) != ""


def tables_in(one: Any) -> list[dict[str, Any]]:
    """Return every table of declared keys in a schema."""
    inner = one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
    tables = [table for each in inner for table in tables_in(each)]
    return [*tables, one] if isinstance(one, dict) and one.get("additionalProperties") is False else tables


@pytest.mark.parametrize("kind", KINDS)
def test_every_table_has_keys_and_every_key_says_what_it_means(kind: str) -> None:
    """A record without annotations for documents would be a table without keys."""
    for table in tables_in(schema(kind)):
        assert table["properties"]
        assert all(one["description"] for one in table["properties"].values())


def test_unknown_kind_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'cluster'"):
        schema("clusters_")


def test_module_rewrites_the_schemas(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "planner.formats.schemas", str(tmp_path)], check=True)
    write_schemas(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in SHIPPED.iterdir())


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_predictions_match_their_schema(
    validate: Validate, prediction: Callable[[str], Prediction], subject: Subject, mode: str
) -> None:
    one = json.loads(dump_json(prediction_document(subject, prediction(mode))))
    assert validate(schema("prediction"), one) == ""
    two = json.loads(dump_json(predictions_document([(subject, prediction(mode))] * 2)))
    assert validate(schema("predictions"), two) == ""
    del one["terms"]
    assert validate(schema("prediction"), one) == "'terms' is a required property"


@pytest.mark.parametrize("found", [True, False])
@pytest.mark.parametrize("pareto", [True, False])
def test_suggestions_match_their_schema(
    validate: Validate, suggestion: Callable[..., Suggestion], subject: Subject, *, found: bool, pareto: bool
) -> None:
    one = suggestion(found=found, pareto=pareto)
    assert validate(schema("suggestion"), json.loads(dump_json(suggestion_document(subject, one)))) == ""
    assert validate(schema("suggestions"), json.loads(dump_json(suggestions_document([(subject, one)] * 2)))) == ""
