"""Suggestions and plans as documents (JSON), and any answer of `planner suggest` or `planner predict` read back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from planner.domain.configuration import Configuration, Settings
from planner.domain.framework import Framework
from planner.domain.job import PlanToStart
from planner.domain.prediction import Citation, PlanWarning, Prediction, Quantity, Run
from planner.domain.request import Subject
from planner.domain.suggestion import Plan, Sensitivity, Suggestion, question_of
from planner.errors import NOTHING, InputFileError, NothingFitsError, ParameterError, UsageError
from planner.formats.documents import Kind, parse_text, read_text
from planner.formats.fields import Field, FieldError, ListOf, Number, Table, Whole, record_of, values_of
from planner.formats.parts import (
    CITATIONS,
    CONFIGURATION_TABLE,
    REQUEST_TABLE,
    SUBJECT_TABLE,
    citation_keys,
    citations_of,
    configuration_keys,
    framework_of,
    subject_keys,
    subject_of,
    warning_keys,
    warning_table,
    warnings_of,
)
from planner.formats.prediction import (
    FIGURES,
    PREDICTION,
    PREDICTIONS,
    QUANTITY,
    SOURCES,
    Shared,
    figures_keys,
    prediction_from,
    prediction_of,
    predictions_of,
    stage_layers_of,
)
from planner.formats.summaries import BRIEF, BRIEFS

__all__ = [
    "SUGGESTION", "SUGGESTIONS", "Answers", "KeptPlans", "built", "parse_answers", "read_answers", "read_plans",
    "suggestion_document", "suggestion_of", "suggestions_document",
]  # fmt: skip

_CONFIGURATION = Field("configuration", CONFIGURATION_TABLE, "what the plan decides")
_FIGURES = Field("prediction", FIGURES, "what it takes")
_PLAN = Table.of(
    Plan,
    _CONFIGURATION,
    _FIGURES,
    Field("walltime_s", QUANTITY, "the whole training, where the request says epochs, tokens or a deadline", None),
    Field("steps", Number(), "updates of a run of tokens", None),
    make=dict,
    title="plan",
)
_OF_FRONT = Table.of(
    Plan,
    Field("position", Whole(), "place on the front"),
    Field("plan", Whole(), "position in plans of the same configuration, which stands there", None),
    replace(_CONFIGURATION, default=None),
    replace(_FIGURES, default=None),
    make=dict,
    omit=("first_is_better", "efficiency", "alike"),
    doc="a plan of the front: one of plans, by its position there, or configuration and prediction",
    title="plan_of_front",
)
_SENSITIVITY = Table.of(
    Sensitivity,
    Field("configuration", CONFIGURATION_TABLE, "of it; absent: it is among plans, or nothing fits then", None),
    make=dict,
    title="sensitivity",
)
_SUGGESTION = Table.of(
    Suggestion,
    Field("subject", SUBJECT_TABLE, "what the plans share"),
    Field("request", REQUEST_TABLE, "every value with its source"),
    Field("sensitivity", ListOf(_SENSITIVITY), "what a change of single inputs does, where asked", ()),
    Field("baseline", CONFIGURATION_TABLE, "what efficiencies are relative to", None),
    Field("plans", ListOf(_PLAN), "best first; empty where nothing fits"),
    Field("pareto", ListOf(_OF_FRONT), "front of the objective, GPUs and distance from the target, where asked", None),
    Field("nearest", ListOf(_PLAN), "plans nearest to the target, when none fits", ()),
    SOURCES,
    CITATIONS,
    Field(
        "warnings",
        ListOf(
            warning_table(
                plans="positions in plans (else nearest) of those that it is of; absent: of all",
                pareto="the same of the front",
            )
        ),
        "what a reader should know, each once",
        (),
    ),
    make=dict,
)
SUGGESTION = Kind("suggestion", "json", _SUGGESTION)
_ONE_EACH = "one a target, network, scenario and cluster; of several clusters the best first"
SUGGESTIONS = Kind("suggestions", "json", Table(Field("suggestions", ListOf(_SUGGESTION), _ONE_EACH)))
IN_WINDOW, OUTSIDE = 1.0, 0.0
"""Probability of the window for mini-batches that are not random: of plans, and of those that are only nearest."""


def suggestion_document(subject: Subject, suggestion: Suggestion) -> dict[str, Any]:
    """Return the document of one suggestion."""
    return SUGGESTION.document(_suggestion_keys(subject, suggestion))


def suggestions_document(suggestions: Iterable[tuple[Subject, Suggestion]]) -> dict[str, Any]:
    """Return the document of suggestions and what each is about, in their order."""
    return SUGGESTIONS.document({"suggestions": [_suggestion_keys(*one) for one in suggestions]})


def _suggestion_keys(subject: Subject, suggestion: Suggestion) -> dict[str, Any]:
    one, framework = suggestion, subject.settings.framework
    shared = Shared(plan.prediction for plan in (*one.plans, *one.nearest))
    pareto = one.request.get("pareto")
    plans = [_plan_keys(subject, plan, IN_WINDOW, shared, one.run) for plan in one.plans]
    nearest = tuple(_plan_keys(subject, plan, OUTSIDE, shared, one.run) for plan in one.nearest)
    front = [_front_keys(subject, plan, one.plans, shared) for plan in one.pareto]
    lists = {"plans": one.plans or one.nearest, "pareto": one.pareto}
    warnings = {key: {plan.position: plan.prediction.warnings for plan in plans} for key, plans in lists.items()}
    return values_of(one) | {
        "subject": subject_keys(replace(subject, network_option=""), shared.memory_bytes),
        "citations": citation_keys(one.citations),
        "baseline": one.baseline and configuration_keys(one.baseline, framework, one.baseline_framework),
        "sensitivity": tuple(_sensitivity_keys(each, framework) for each in one.sensitivity),
        "plans": plans,
        "pareto": front if front or (pareto is not None and pareto.value) else None,
        "nearest": nearest,
        "sources": shared.sources(),
        "warnings": warning_keys(one.warnings, warnings),
    }


def _sensitivity_keys(one: Sensitivity, shared: Framework) -> dict[str, Any]:
    is_told = one.best is None or one.position is not None
    configuration = None if is_told or one.best is None else configuration_keys(one.best, shared, one.framework)
    return values_of(one, configuration=configuration)


def _sensitivity_of(keys: Mapping[str, Any], plans: Sequence[Plan]) -> Sensitivity:
    told = next((plan for plan in plans if plan.position == keys["position"]), None)
    own = keys["configuration"]
    best = told.prediction.configuration if told else record_of(Configuration, own) if own else None
    framework = told.framework if told else framework_of(own)
    return record_of(Sensitivity, keys, best=best, framework=framework)


def _plan_keys(subject: Subject, plan: Plan, inside: float, shared: Shared, run: Run | None = None) -> dict[str, Any]:
    one = plan.prediction
    return values_of(plan) | {
        "configuration": configuration_keys(one.configuration, subject.settings.framework, plan.framework),
        "prediction": figures_keys(one, subject, inside, shared),
        "precisions": plan.precisions if len(plan.precisions) > 1 else (),
        "walltime_s": run and one.training_s(run, subject.tokens),
        "steps": run and one.steps(run, subject.tokens),
    }


def _front_keys(subject: Subject, plan: Plan, plans: Sequence[Plan], shared: Shared) -> dict[str, Any]:
    """Return the keys of a plan of the front; of one that is among ``plans``, its position there."""
    if at := plan.position_among(plans):
        return {"position": plan.position, "plan": at, "why": plan.why}
    return _plan_keys(subject, plan, IN_WINDOW, shared)


def suggestion_of(keys: Mapping[str, Any]) -> tuple[Subject, Suggestion]:
    """Return what the keys of a document say; UsageError or FieldError where no answer can be so."""
    plans = tuple(_plan_of(plan, keys, "plans", IN_WINDOW) for plan in keys["plans"])
    suggestion = record_of(
        Suggestion,
        keys,
        plans=plans,
        pareto=tuple(_plan_of_front(plan, plans, keys) for plan in keys["pareto"] or ()),
        nearest=tuple(_plan_of(plan, keys, "plans", OUTSIDE) for plan in keys["nearest"]),
        warnings=tuple(
            PlanWarning(row["code"], one["subject"], row["message"])
            for row in keys["warnings"]
            for one in (row, *row["also"])
            if one["plans"] != () or not one["pareto"]  # those of plans of the front alone stand there
        ),
        citations=citations_of(keys["citations"]),
        baseline=record_of(Configuration, keys["baseline"]) if keys["baseline"] else None,
        baseline_framework=framework_of(keys["baseline"]),
        sensitivity=tuple(_sensitivity_of(one, plans) for one in keys["sensitivity"]),
    )
    values = {f"{name}_option": suggestion.request.get(name) for name in ("network", "cluster")}
    options: dict[str, Any] = {
        name: one.value for name, one in values.items() if one is not None and isinstance(one.value, str)
    }
    told = (*keys["plans"], *keys["nearest"], *(keys["pareto"] or ()))
    configurations = [*(plan["configuration"] for plan in told), keys["baseline"]]
    return replace(subject_of(keys["subject"], configurations), **options), suggestion


def _plan_of(plan: Mapping[str, Any], keys: Mapping[str, Any], where: str, inside: float) -> Plan:
    """Return a plan; ``keys`` are those of the suggestion, ``where``: the positions in its warnings."""
    configuration = record_of(Configuration, plan["configuration"])
    warnings = warnings_of(keys["warnings"], where, plan["position"])
    return record_of(
        Plan,
        plan,
        prediction=prediction_from(plan["prediction"], configuration, warnings, inside, keys),
        framework=framework_of(plan["configuration"]),
    )


def _plan_of_front(plan: Mapping[str, Any], plans: Sequence[Plan], keys: Mapping[str, Any]) -> Plan:
    same = next((one for one in plans if one.position == plan["plan"]), None)
    if same is not None:
        return replace(same, position=plan["position"], why=plan["why"], first_is_better=None, efficiency=None)
    if plan["configuration"] is None or plan["prediction"] is None:
        raise FieldError("pareto", f"plan {plan['position']} must be one of plans, or told in full, got neither")
    return _plan_of(plan, keys, "pareto", IN_WINDOW)


@dataclass(frozen=True, slots=True)
class Answers:
    """What a document holds, suggestions or predictions, each with what it is about, in the order of the document.

    ``citations`` are those of predictions; a suggestion has its own.
    """

    suggestions: tuple[tuple[Subject, Suggestion], ...] = ()
    predictions: tuple[tuple[Subject, Prediction], ...] = ()
    citations: tuple[Citation, ...] = ()

    @property
    def of_best_cluster(self) -> tuple[tuple[Subject, Suggestion], ...]:
        """The suggestions; of one ranking of clusters the first alone, which has the plan to take."""
        is_ranking = len({question_of(*one) for one in self.suggestions}) == 1
        return self.suggestions[:1] if is_ranking else self.suggestions

    def with_frameworks(self, recorded: Callable[[Framework], Framework]) -> Answers:
        """Return the answers with the records of frameworks, of which a document has the labels alone."""

        def of_subject(subject: Subject) -> Subject:
            settings = subject.settings
            return replace(subject, settings=replace(settings, framework=recorded(settings.framework)))

        def of_plans(plans: Iterable[Plan]) -> tuple[Plan, ...]:
            return tuple(replace(one, framework=one.framework and recorded(one.framework)) for one in plans)

        suggestions = tuple(
            (
                of_subject(subject),
                replace(one, plans=of_plans(one.plans), pareto=of_plans(one.pareto), nearest=of_plans(one.nearest)),
            )
            for subject, one in self.suggestions
        )
        predictions = tuple((of_subject(subject), one) for subject, one in self.predictions)
        return replace(self, suggestions=suggestions, predictions=predictions)


T = TypeVar("T")
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
    not told. InputFileError, with path and place, where it is unreadable, no answer, or a key or value breaks its rule;
    VersionError where it is newer than this program.
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
    return built(kind, document, path, make)


def built(kind: Kind[Any], document: dict[str, Any], path: str, make: Callable[[Mapping[str, Any]], T]) -> T:
    """Return what is made of a document of a kind; InputFileError where keys or values break a rule."""
    keys = kind.build(document, path)
    try:
        return make(keys)
    except FieldError as error:
        raise InputFileError(path, error.problem, error.place) from None
    except UsageError as error:
        raise InputFileError(path, str(error)) from None


Recorded = Callable[[Framework], Framework]
"""Framework of a label -> the same as its record has it."""


@dataclass(frozen=True, slots=True)
class KeptPlans:
    """The plans of one request; ``chosen``: the position of the one to take; None: no plan fits, or none is chosen."""

    plans: tuple[PlanToStart, ...]
    chosen: int | None

    def plan(self, position: int | None, option: str) -> PlanToStart:
        """Return the plan at a position, which ``option`` gives; None: the one to take.

        NothingFitsError: no plan fits. ParameterError: no plan stands there, or none of several is chosen.
        """
        if not self.plans:
            raise NothingFitsError("no plan fits in this answer; its key loosen says what to change")
        number = position or self.chosen or (1 if len(self.plans) == 1 else NOTHING)
        match = next((one for one in self.plans if one.position == number), None)
        if match is None:
            positions = ", ".join(str(one.position) for one in self.plans)
            raise ParameterError(option, f"one of the answer's ({positions})", number)
        return match

    @staticmethod
    def alone(answers: Sequence[KeptPlans], what: str) -> KeptPlans:
        """Return the one answer of a document; ParameterError: there are several."""
        if len(answers) != 1:
            raise ParameterError(what, "of one network and scenario", f"{len(answers)} answers", "ask for one")
        return answers[0]


def read_plans(path: Path | str, epochs: int | None, recorded: Recorded) -> tuple[KeptPlans, ...]:
    """Return the plans of a file by request; ``epochs`` of the whole training, by default those of the file, or one.

    InputFileError, with path and place, where it is unreadable, no answer, or a key or value breaks its rule;
    VersionError where it is newer than this program.
    """
    text = read_text(path)
    document = parse_text(text, str(path), "json")
    for kind in (BRIEF, BRIEFS):
        if document.get("format") == kind.format:
            return built(kind, document, str(path), lambda keys: _of_briefs(keys, epochs, recorded))
    answers = parse_answers(text, str(path)).with_frameworks(recorded)
    if answers.predictions:
        rows = enumerate(answers.predictions, 1)
        run = Run(epochs or 1)
        plans = tuple(PlanToStart.of(one, subject, at, run) for at, (subject, one) in rows)
        return (KeptPlans(plans, 1 if len(plans) == 1 else None),)
    return tuple(
        KeptPlans(
            tuple(plan.to_start(subject, Run(epochs) if epochs else one.run) for plan in one.plans),
            one.chosen,
        )
        for subject, one in answers.of_best_cluster
    )


def _of_briefs(keys: Mapping[str, Any], epochs: int | None, recorded: Recorded) -> tuple[KeptPlans, ...]:
    briefs: Sequence[Mapping[str, Any]] = keys.get("briefs", [keys])
    clusters, others = (
        {tuple(one[key] for key in of) for one in briefs} for of in (("cluster",), ("network", "scenario"))
    )
    is_ranking = len(others) == 1 and len(clusters) == len(briefs)
    return tuple(_of_brief(one, epochs, recorded) for one in (briefs[:1] if is_ranking else briefs))


def _of_brief(keys: Mapping[str, Any], epochs: int | None, recorded: Recorded) -> KeptPlans:
    if keys["status"] != "found":
        return KeptPlans((), None)
    missing = next((key for key in ("position", "iteration_s", "nodes", "sub_batch") if keys[key] is None), None)
    if missing:
        raise FieldError(missing, "key must be given, as a plan was found")
    framework = recorded(Framework.labelled(keys["framework"]))
    own = {
        "framework": framework,
        "optimizer": keys["optimizer"] or Settings().optimizer,
        "strategy": keys["strategy"] or framework.strategy,
        "rank_order": (),
    }
    subject = record_of(Subject, {**keys, "tokens": 0}, settings=record_of(Settings, keys, **own))
    training, of_file = None, Run(keys["epochs"] or 1, keys["tokens"] or 0.0)
    run = Run(epochs) if epochs else of_file
    if keys["walltime_s"] and run == of_file:
        training = keys["walltime_s"]
    elif (one := keys["epoch_s"]) and one.value is not None:
        training = Quantity(*(end and end * run.epochs for end in (one.value, one.low, one.high)))
    plan = PlanToStart(
        keys["position"], subject, record_of(Configuration, keys), keys["iteration_s"], keys["rank_order"],
        stage_layers_of(keys), None, training, run,
    )  # fmt: skip
    return KeptPlans((plan,), plan.position)
