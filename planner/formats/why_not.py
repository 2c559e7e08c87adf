"""Why plans with certain values are not the answer, as documents (JSON).

History, newest first
---------------------
why_not 1 : first version.
"""

from __future__ import annotations

from typing import Any

from planner.domain.request import Subject
from planner.domain.why_not import RankedPlan, WhyNot
from planner.formats.asked import REQUEST_TABLE, request_keys
from planner.formats.configuration import (
    CONFIGURATION_TABLE,
    SUBJECT_TABLE,
    configuration_keys,
    subject_keys,
)
from planner.formats.fields import Field, ListOf, MapOf, Table
from planner.formats.kinds import Kind
from planner.formats.parts import LOOSENING_TABLE, REFUSAL_TABLE
from planner.formats.values import Number, Text, Whole

__all__ = ["WHY_NOT", "why_not_document"]

_PLAN = Table(
    (
        Field("configuration", CONFIGURATION_TABLE, "what the plan decides"),
        Field("objective", Number(), "what is minimised: s or USD of an epoch (no data set: of a sample), or a sum"),
    ),
    dict[str, Any],
    title="ranked_plan",
)
WHY_NOT = Kind(
    "why_not",
    1,
    "json",
    Table(
        (
            Field("subject", SUBJECT_TABLE, "what the plans share"),
            Field("request", REQUEST_TABLE, "every value with its source"),
            Field("values", MapOf(Text()), "what is asked about, by option"),
            Field("framework", Text(), "of the plans asked about, one of several; absent: that of the subject", None),
            Field("status", Text(("ranked", "outside", "refused")), "whether the request tries and allows such plans"),
            Field("first", _PLAN, "the best plan of the request; absent: nothing satisfies it", None),
            Field("best", _PLAN, "the best plan with the values; absent: none of them satisfies the request", None),
            Field("rank", Whole(), "of best among all plans, each precision by itself, from 1", None),
            Field("evaluated", Whole(least=0, most=10**18), "plans that satisfy the request"),
            Field("outside", ListOf(Text()), "values that the request does not try, or the cluster has not", ()),
            Field("candidates", Whole(least=0, most=10**18), "candidates with the values"),
            Field("refused", ListOf(REFUSAL_TABLE), "of them, by the reason", ()),
            Field("loosen", ListOf(LOOSENING_TABLE), "what else to change; where all are refused", ()),
        ),
        dict[str, Any],
    ),
)


def why_not_document(subject: Subject, answer: WhyNot) -> dict[str, Any]:
    """Return the document of an answer."""

    def plan(one: RankedPlan | None) -> dict[str, Any] | None:
        if one is None:
            return None
        framework = one.framework or subject.settings.framework
        configuration = configuration_keys(one.configuration, framework, named=one.framework is not None)
        return {"configuration": configuration, "objective": one.objective}

    names = ("values", "rank", "evaluated", "outside", "candidates", "refused", "loosen")
    return WHY_NOT.document(
        {name: getattr(answer, name) for name in names}
        | {
            "subject": subject_keys(subject, None),
            "request": request_keys(answer.request),
            "framework": answer.framework or None,
            "status": answer.status,
            "first": plan(answer.first),
            "best": plan(answer.best),
        }
    )
