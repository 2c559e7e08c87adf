"""Plans of answers that were kept: of ``suggest --json``, also ``--brief``, and of ``predict --json``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.domain.configuration import Configuration, Settings
from planner.domain.framework import Framework
from planner.domain.job import PlanToStart
from planner.domain.prediction import Quantity, Run
from planner.domain.request import Subject
from planner.errors import NOTHING, NothingFitsError, ParameterError
from planner.formats.documents import parse_text, read_text
from planner.formats.fields import FieldError
from planner.formats.parts import configuration_of
from planner.formats.prediction import stage_layers_of
from planner.formats.suggestion import built, parse_answers
from planner.formats.summaries import BRIEF, BRIEFS

__all__ = ["KeptPlans", "read_plans"]

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
        for subject, one in answers.suggestions
    )


def _of_briefs(keys: Mapping[str, Any], epochs: int | None, recorded: Recorded) -> tuple[KeptPlans, ...]:
    briefs: Sequence[Mapping[str, Any]] = keys.get("briefs", [keys])
    return tuple(_of_brief(one, epochs, recorded) for one in briefs)


def _of_brief(keys: Mapping[str, Any], epochs: int | None, recorded: Recorded) -> KeptPlans:
    if keys["status"] != "found":
        return KeptPlans((), None)
    missing = next((key for key in ("position", "iteration_s", "nodes", "sub_batch") if keys[key] is None), None)
    if missing:
        raise FieldError(missing, "key must be given, as a plan was found")
    framework = recorded(Framework.labelled(keys["framework"]))
    size, optimizer = keys["bucket_bytes"] or 0.0, keys["optimizer"] or Settings().optimizer
    settings = Settings(optimizer, keys["strategy"] or framework.strategy, framework=framework, bucket_bytes=size)
    subject = Subject(
        keys["network"],
        keys["cluster"],
        keys["scenario"] or "",
        settings,
        device=keys["device"],
        layers=keys["layers"] or 0,
    )
    training, of_file = None, Run(keys["epochs"] or 1, keys["tokens"] or 0.0)
    run = Run(epochs) if epochs else of_file
    if keys["walltime_s"] and run == of_file:
        training = _quantity(keys["walltime_s"])
    elif keys["epoch_s"] and keys["epoch_s"]["value"] is not None:
        one, times = _quantity(keys["epoch_s"]), run.epochs
        low, high = (end and end * times for end in (one.low, one.high))
        training = Quantity(one.value * times, low, high)
    configuration: Configuration = configuration_of(keys)
    return KeptPlans(
        (
            PlanToStart(
                keys["position"], subject, configuration, _quantity(keys["iteration_s"]), keys["rank_order"],
                stage_layers_of(keys), None, training, run,
            ),
        ),
        keys["position"],
    )  # fmt: skip


def _quantity(keys: Mapping[str, Any]) -> Quantity:
    return Quantity(keys["value"], keys["low"], keys["high"])
