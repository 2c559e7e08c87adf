"""Predictions as documents (JSON).

History, newest first
---------------------
prediction 1, predictions 1 : first versions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from planner.domain.citation import Citation
from planner.domain.prediction import PlanWarning, Prediction
from planner.domain.request import Subject
from planner.formats.configuration import (
    CONFIGURATION_TABLE,
    SUBJECT_FIELDS,
    SUBJECT_TABLE,
    configuration_keys,
    configuration_of,
    subject_keys,
    subject_of,
)
from planner.formats.fields import Field, ListOf, Table, without_none
from planner.formats.figures import FIGURES, SOURCES, Shared, figures_keys, figures_of
from planner.formats.kinds import Kind
from planner.formats.parts import CITATIONS, citation_keys, warning_keys, warning_table, warnings_of

__all__ = [
    "PREDICTION",
    "PREDICTIONS",
    "prediction_document",
    "prediction_of",
    "predictions_document",
    "predictions_of",
]

_CONFIGURATION = Field("configuration", CONFIGURATION_TABLE, "what is predicted")
_OWN = Table(
    tuple(replace(field, default=None) for field in SUBJECT_FIELDS), dict[str, Any], title="subject_of_one"
)  # its keys go before those of all
_ONE = Table(
    (
        _CONFIGURATION,
        *FIGURES,
        Field("subject", _OWN, "keys of the subject that are not those of all predictions", None),
    ),
    dict[str, Any],
    title="prediction",
)
PREDICTION = Kind(
    "prediction",
    1,
    "json",
    Table(
        (
            Field("subject", SUBJECT_TABLE, "what is predicted, by name"),
            _CONFIGURATION,
            *FIGURES,
            SOURCES,
            CITATIONS,
            Field("warnings", ListOf(warning_table()), "what a reader should know", ()),
        ),
        dict[str, Any],
    ),
)
PREDICTIONS = Kind(
    "predictions",
    1,
    "json",
    Table(
        (
            Field("subject", _OWN, "what is predicted, by name, as far as all predictions share it"),
            Field("predictions", ListOf(_ONE), "in the order of the options"),
            SOURCES,
            CITATIONS,
            Field(
                "warnings",
                ListOf(warning_table(predictions="positions, from 1, of those that it is of; absent: of all")),
                "what a reader should know, each once",
                (),
            ),
        ),
        dict[str, Any],
    ),
)


def prediction_document(subject: Subject, prediction: Prediction, citations: Sequence[Citation] = ()) -> dict[str, Any]:
    """Return the document of one prediction, with the citations of the calibrations that it rests on."""
    shared = Shared([prediction])
    keys = _prediction_keys(subject, prediction, shared)
    warnings = tuple(warning_keys(prediction.warnings, {}))
    return PREDICTION.document(
        {
            "subject": subject_keys(subject, shared.memory_bytes),
            **keys,
            "sources": shared.sources(),
            "citations": citation_keys(citations),
            "warnings": warnings,
        }
    )


def predictions_document(
    predictions: Iterable[tuple[Subject, Prediction]], citations: Sequence[Citation] = ()
) -> dict[str, Any]:
    """Return the document of predictions and what each is about, in their order; at least one."""
    each = list(predictions)
    shared = Shared(one for _, one in each)
    subjects = [subject_keys(subject, shared.memory_bytes) for subject, _ in each]
    alike = {key: value for key, value in subjects[0].items() if all(one[key] == value for one in subjects)}
    rows = []
    for (subject, one), about in zip(each, subjects, strict=True):
        own = {key: value for key, value in about.items() if key not in alike}
        rows.append({"subject": _none_else(own) if own else None, **_prediction_keys(subject, one, shared)})
    return PREDICTIONS.document(
        {
            "subject": _none_else(alike),
            "predictions": rows,
            "sources": shared.sources(),
            "citations": citation_keys(citations),
            "warnings": tuple(
                warning_keys((), {"predictions": {at: one.warnings for at, (_, one) in enumerate(each, 1)}})
            ),
        }
    )


def prediction_of(keys: Mapping[str, Any]) -> tuple[Subject, Prediction]:
    """Return what the keys of a document say; UsageError or FieldError where no answer can be so."""
    subject = subject_of(keys["subject"], [keys["configuration"]])
    return subject, _prediction_of(keys, warnings_of(keys["warnings"]), keys)


def predictions_of(keys: Mapping[str, Any]) -> list[tuple[Subject, Prediction]]:
    """Return what the keys of a document say, in their order.

    UsageError or FieldError where no answer can be so.
    """
    answers = []
    for at, one in enumerate(keys["predictions"], 1):
        keys_of_subject = without_none(**keys["subject"]) | without_none(**(one["subject"] or {}))
        about = SUBJECT_TABLE.read(keys_of_subject, f"predictions[{at - 1}].subject")
        warnings = warnings_of(keys["warnings"], "predictions", at)
        prediction = _prediction_of(one, warnings, {**keys, "subject": about})
        answers.append((subject_of(about, [one["configuration"]]), prediction))
    return answers


def _none_else(keys: Mapping[str, Any]) -> dict[str, Any]:
    return dict.fromkeys(field.name for field in SUBJECT_FIELDS) | dict(keys)


def _prediction_keys(subject: Subject, prediction: Prediction, shared: Shared) -> dict[str, Any]:
    configuration = configuration_keys(prediction.configuration, subject.settings.framework)
    return {"configuration": configuration} | figures_keys(prediction, subject.usd_per_gpu_hour, None, shared)


def _prediction_of(
    keys: Mapping[str, Any], warnings: tuple[PlanWarning, ...], document: Mapping[str, Any]
) -> Prediction:
    configuration = configuration_of(keys["configuration"])
    return Prediction(configuration, warnings=warnings, **figures_of(keys, configuration, None, document))
