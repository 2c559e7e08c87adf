"""Answers of ``planner suggest`` and ``planner predict`` read back, from a document of any kind and version of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.domain.citation import Citation
from planner.domain.prediction import Prediction
from planner.domain.request import Subject
from planner.domain.suggestion import Suggestion
from planner.errors import InputFileError, UsageError
from planner.formats.documents import parse_text, read_text
from planner.formats.kinds import Kind
from planner.formats.parts import citations_of
from planner.formats.prediction import PREDICTION, PREDICTIONS, prediction_of, predictions_of
from planner.formats.suggestion import SUGGESTION, SUGGESTIONS, suggestion_of
from planner.formats.values import FieldError

__all__ = ["Answers", "parse_answers", "read_answers"]


@dataclass(frozen=True, slots=True)
class Answers:
    """What a document holds, suggestions or predictions, each with what it is about, in the order of the document.

    ``citations`` are those of predictions; a suggestion has its own.
    """

    suggestions: tuple[tuple[Subject, Suggestion], ...] = ()
    predictions: tuple[tuple[Subject, Prediction], ...] = ()
    citations: tuple[Citation, ...] = ()


Make = Callable[[Mapping[str, Any]], Answers]
_KINDS: Mapping[str, tuple[Kind[Any], Make]] = {
    kind.format: (kind, make)
    for kind, make in (
        (SUGGESTION, lambda keys: Answers((suggestion_of(keys),))),
        (SUGGESTIONS, lambda keys: Answers(tuple(map(suggestion_of, keys["suggestions"])))),
        (PREDICTION, lambda keys: Answers((), (prediction_of(keys),), citations_of(keys["citations"]))),
        (PREDICTIONS, lambda keys: Answers((), tuple(predictions_of(keys)), citations_of(keys["citations"]))),
    )
}


def read_answers(path: Path | str) -> Answers:
    """Return the answers of a file, as ``--json`` prints them.

    Intervals that follow from others are equal to what was written but for rounding, and the deviations behind them are
    not told.

    Raises
    ------
    InputFileError
        Unreadable, truncated, no answer, or a key or value against its rule; path and place are named.
    VersionError
        Newer than this program.
    """
    return parse_answers(read_text(path), str(path))


def parse_answers(text: str, path: str) -> Answers:
    """Return the answers of a text that came from ``path``; errors as of ``read_answers``."""
    document = parse_text(text, path, "json")
    name = document.get("format")
    if not isinstance(name, str) or name not in _KINDS:
        received = "nothing" if name is None else repr(name)
        raise InputFileError(path, f"value must be one of {', '.join(map(repr, _KINDS))}, got {received}", "format")
    kind, make = _KINDS[name]
    keys = kind.build(document, path)
    try:
        return make(keys)
    except FieldError as error:
        raise InputFileError(path, error.problem, error.place) from None
    except UsageError as error:
        raise InputFileError(path, str(error)) from None
