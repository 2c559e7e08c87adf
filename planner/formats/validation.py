"""Validations as documents (JSON).

History, newest first
---------------------
validation 1 : first version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from planner.domain.runs import METRICS, STATUSES
from planner.domain.validation import AXES, ORDERS, ScoredRow, Validation
from planner.formats.fields import Field, ListOf, MapOf, Nullable, Table
from planner.formats.kinds import Kind
from planner.formats.values import Flag, Number, Text, Whole

__all__ = ["VALIDATION", "validation_document"]

_NUMBER_OR_NULL = Nullable(Number())
_SIGNED = Nullable(Number(signed=True))
_ROWS = Whole(least=0)
_NAME = Text(empty=True)
_STATUS = Nullable(Text(STATUSES))
_ERRORS = Table(
    (
        Field("n", _ROWS, "rows"),
        Field("mape", _NUMBER_OR_NULL, "mean of abs(predicted / measured - 1)"),
        Field("median_ape", _NUMBER_OR_NULL, "its median"),
        Field("p90_ape", _NUMBER_OR_NULL, "its 90 % quantile"),
        Field("bias", _SIGNED, "mean of predicted / measured - 1"),
        Field("coverage_90", _NUMBER_OR_NULL, "share of the rows with an interval whose measured value lies in it"),
    ),
    dict[str, Any],
    title="errors",
)
_RANKING = Table(
    (
        Field("groups", _ROWS, "groups of at least two plans that ran"),
        Field("spearman", _SIGNED, "rank correlation of predicted and measured times, mean over groups"),
        Field("top1", _NUMBER_OR_NULL, "share of groups whose first choice is the fastest"),
        Field("regret_mean", _NUMBER_OR_NULL, "time of the first choice over the least, minus 1, mean over groups"),
        Field("regret_max", _NUMBER_OR_NULL, "its largest value"),
        Field("regret_best3", _NUMBER_OR_NULL, "the same of the best of the first three choices, mean over groups"),
        Field("regret_best3_max", _NUMBER_OR_NULL, "its largest value"),
        Field("chose_out_of_memory", _NUMBER_OR_NULL, "share of groups whose first choice ran out of memory"),
    ),
    dict[str, Any],
)
_ORDERED = Table(
    (
        Field("order", Text(ORDERS), "what orders plans: predictions, chance, or a rule of one line"),
        Field("plans", Text(), "how many plans the groups have"),
        *_RANKING.fields,
    ),
    dict[str, Any],
    title="order",
)
_LOCKED = Table(
    (
        Field("sources", ListOf(Text()), "names of their sources, which are locked"),
        Field("rows", _ROWS, "how many there are"),
        Field("predicted", _ROWS, "how many of them are predicted"),
    ),
    dict[str, Any],
)
_GROUP = Table(
    (
        Field("group", Text(), "name of the group"),
        Field("n", Whole(least=2), "plans with a prediction that ran"),
        Field("spearman", _SIGNED, "rank correlation of predicted and measured times"),
        Field("top1", Number(), "probability that the first choice is the fastest"),
        Field("regret", Number(), "time of the first choice over the least, minus 1"),
        Field("regret_best3", Number(), "the same of the best of the first three choices"),
        Field("chose_out_of_memory", Number(), "probability that the first choice ran out of memory"),
    ),
    dict[str, Any],
)
_MEMORY = Table(
    (
        Field("true_out_of_memory", _ROWS, "rows called out of memory that ran out"),
        Field("false_out_of_memory", _ROWS, "rows called out of memory that ran"),
        Field("true_ok", _ROWS, "rows called ok that ran"),
        Field("false_ok", _ROWS, "rows called ok that ran out of memory"),
    ),
    dict[str, Any],
)
_TERM = Table(
    (
        Field("term", Text(), "term that explains part of what predictions miss"),
        Field("scale", Number(), "factor on it that explains most"),
        Field("n", Whole(), "rows"),
        Field("mape", Number(), "mean error as predicted"),
        Field("scaled_mape", Number(), "mean error with the term scaled, each row by what the others ask for"),
    ),
    dict[str, Any],
)
_ROW = Table(
    (
        Field("id", _NAME, "name of the run"),
        Field("line", Whole(least=0), "where it stands in its file"),
        Field("metric", Nullable(Text(METRICS)), "what the figures are; null where the row could not be read"),
        Field("predicted", _NUMBER_OR_NULL, "as if memory sufficed; null where refused"),
        Field("low", _NUMBER_OR_NULL, "lower end of the central 90 % interval"),
        Field("high", _NUMBER_OR_NULL, "upper end"),
        Field("measured", _NUMBER_OR_NULL, "null where the run gave no value"),
        Field("status_predicted", _STATUS, "whether memory suffices; null where refused"),
        Field("in_sample", Flag(), "whether a calibration that predicts the row has seen it"),
        Field("refused_reason", Nullable(Text()), "why it is not predicted"),
        Field("refused_code", Nullable(Text()), "the same for programs; absent where it is predicted", None),
    ),
    dict[str, Any],
    title="row",
)
VALIDATION = Kind(
    "validation",
    1,
    "json",
    Table(
        (
            Field("summary", _ERRORS, "errors of rows that were predicted and that no calibration has seen"),
            Field(
                "by",
                Table(
                    tuple(Field(axis, MapOf(_ERRORS, pattern=r"[\s\S]*"), f"by {axis}") for axis in AXES),
                    dict[str, Any],
                ),
                "the same by property of the row",
            ),
            Field("ranking", _RANKING, "how well plans of one group are ordered"),
            Field("groups", ListOf(_GROUP), "the same group by group"),
            Field("memory", _MEMORY, "predicted against observed shortage of memory"),
            Field("terms", ListOf(_TERM), "terms that explain what predictions miss, the best explanation first"),
            Field("in_sample", _ERRORS, "errors of rows that a calibration has seen"),
            Field("hold_out", Nullable(Text()), "what coefficients were refitted without, in turn"),
            Field(
                "omitted",
                _ROWS,
                "rows that are not listed, as there are too many: they could not be read, or stand beyond the most",
            ),
            Field("rows", ListOf(_ROW), "every row, file by file in its order, but for locked ones"),
            Field(
                "rankings", ListOf(_ORDERED), "ranking of large and of small groups, beside chance and simple rules", ()
            ),
            Field(
                "free_numbers",
                Whole(least=0),
                "fitted values of the step model, the most of one fit; absent: nothing was refitted",
                None,
            ),
            Field("locked", _LOCKED, "rows that are in sums alone, not in rows, groups, terms nor by network", None),
        ),
        dict[str, Any],
    ),
)


def validation_document(validation: Validation, omitted: int = 0) -> dict[str, Any]:
    """Return the document of a validation; ``omitted`` counts the rows that it does not list."""
    keys = {one.name: getattr(validation, one.name) for one in fields(Validation)}
    rankings = tuple({"order": one.order, "plans": one.plans, **asdict(one.figures)} for one in validation.rankings)
    told = {"rows": map(_keys, validation.rows), "omitted": omitted, "rankings": rankings}
    return VALIDATION.document(keys | told)


def _keys(row: ScoredRow) -> Mapping[str, Any]:
    refusal = {"refused_reason": row.refused and str(row.refused), "refused_code": row.refused and row.refused.code}
    rest = {one.name: getattr(row, one.name) for one in _ROW.fields if one.name not in refusal}
    return {**rest, **refusal, "metric": row.metric or None}
