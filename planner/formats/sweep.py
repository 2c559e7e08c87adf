"""Sweeps as documents (JSON).

History, newest first
---------------------
sweep 1 : first version.
"""

from __future__ import annotations

from typing import Any

from planner.domain.configuration import LARGEST_MINI_BATCH
from planner.domain.objective import is_sum
from planner.domain.request import Subject
from planner.domain.why_not import Sweep
from planner.formats.asked import REQUEST_TABLE, request_keys
from planner.formats.configuration import (
    CONFIGURATION_TABLE,
    LARGEST_PRODUCT,
    SUBJECT_TABLE,
    configuration_keys,
    subject_keys,
)
from planner.formats.fields import Field, ListOf, OneOf, Table
from planner.formats.kinds import Kind
from planner.formats.values import Flag, Number, Text, Whole

__all__ = ["SWEEP", "sweep_document"]

_PLAN = Table(
    (
        Field("rank", Whole(), "among the plans of the sweep, from 1"),
        Field("configuration", CONFIGURATION_TABLE, "the best plan of this number of nodes and sub-batch"),
        Field("objective", Number(), "what is minimised"),
        Field("iteration_s", Number(), "one update; asynchronous: one period of a device's thread"),
        Field("epoch_s", Number(), "a later epoch; absent: no data set", None),
        Field("samples_per_s", Number(), "samples a second"),
        Field(
            "mini_batch",
            OneOf((Whole(most=LARGEST_MINI_BATCH), Number()), rule="a number of samples"),
            "samples behind an update; their mean when asynchronous",
        ),
        Field("memory_bytes", Whole(least=0, most=LARGEST_PRODUCT), "needed on one device"),
    ),
    dict[str, Any],
    title="swept_plan",
)
SWEEP = Kind(
    "sweep",
    1,
    "json",
    Table(
        (
            Field("subject", SUBJECT_TABLE, "what the plans share"),
            Field("request", REQUEST_TABLE, "every value with its source"),
            Field("unit", Text(("s", "s/sample", "USD", "USD/sample", "1")), "of the objective; 1: a weighted sum"),
            Field("plans", ListOf(_PLAN, least=1), "by nodes, then sub-batch; those without a plan are absent"),
            Field("candidates", Whole(least=0, most=10**18), "plans of the space"),
            Field("evaluated", Whole(least=0, most=10**18), "plans that satisfy the request"),
            Field("complete", Flag(), "whether all plans were priced; false: it was interrupted", True),  # noqa: FBT003 - the default
        ),
        dict[str, Any],
    ),
)


def sweep_document(subject: Subject, sweep: Sweep) -> dict[str, Any]:
    """Return the document of a sweep."""
    figures = ("rank", "objective", "iteration_s", "epoch_s", "samples_per_s", "mini_batch", "memory_bytes")
    plans = [
        {"configuration": configuration_keys(one.configuration, subject.settings.framework)}
        | {name: getattr(one, name) for name in figures}
        for one in sweep.plans
    ]
    objective = str(sweep.request["objective"].value)
    unit = "USD" if objective == "cost" else "s"
    unit_of_one = unit if sweep.plans[0].epoch_s is not None else f"{unit}/sample"
    return SWEEP.document(
        {
            "subject": subject_keys(subject, None),
            "request": request_keys(sweep.request),
            "unit": "1" if is_sum(objective) else unit_of_one,
            "plans": plans,
            "candidates": sweep.candidates,
            "evaluated": sweep.evaluated,
            "complete": sweep.is_complete,
        }
    )
