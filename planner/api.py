"""Plans from Python: ``planner.suggest`` and ``planner.predict`` answer as the commands do, with objects.

Options are keyword arguments, ``target_batch=1024`` for ``--target-batch 1024``; several values are a list, tuple,
range or array. A failure is PlannerError, with the sentence that the command says.
"""

from __future__ import annotations

import io
import json
import os
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from planner import catalog
from planner.cli.batch import answered
from planner.domain.configuration import Configuration
from planner.domain.framework import Framework
from planner.domain.prediction import Prediction, Quantity, Run
from planner.domain.request import Subject
from planner.domain.suggestion import Plan as RankedPlan
from planner.errors import ParameterError
from planner.formats.documents import json_line
from planner.formats.suggestion import Answers, parse_answers
from planner.formats.summaries import plan_figures
from planner.formats.tables import frame_of
from planner.report.answer import prediction_answer, predictions_answer, suggestions_views
from planner.report.blocks import Block, html_of, print_blocks
from planner.report.parts import configuration_words
from planner.units import format_duration

if TYPE_CHECKING:
    from planner.formats.tables import DataFrame

_ONE_AT_A_TIME = threading.Lock()
_NOTED: set[str] = set()
MORE = ".warnings has all"


def suggest(**request: Any) -> Suggestion:
    """Return ranked plans of one network and scenario, on one or several clusters.

    The options of ``planner suggest`` are keyword arguments.

    NothingFitsError where no plan fits; any PlannerError has the exit code of the command as ``exit_code``.
    """
    return Suggestion(_text("suggest", request))


def predict(**request: Any) -> Answer:
    """Return the predictions of plans: the options of ``planner predict`` are keyword arguments."""
    return Answer(_text("predict", request))


def _text(command: str, request: dict[str, Any]) -> str:
    with _ONE_AT_A_TIME:
        document, nothing = answered(command, {key: _plain(one) for key, one in request.items()}, _NOTED)
    requests = [one["request"] for one in document.get("suggestions", ())]
    for key in ("network", "scenario", "target_batch"):
        asked = dict.fromkeys(str(one.get(key, {}).get("value", "none")) for one in requests)
        if len(asked) > 1:
            raise ParameterError(key, "one in an answer", ", ".join(asked), "ask for each by itself")
    if nothing is not None:
        raise nothing
    known = ("planner/suggestion", "planner/suggestions", "planner/prediction", "planner/predictions")
    if document["format"] not in known:
        got = document["format"].removeprefix("planner/")
        raise ParameterError("a request", "for ranked or predicted plans", got, "ask the command for others")
    return json_line(document)


def _plain(value: Any) -> Any:
    """Return a value of Python, of NumPy too, as a request has it."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, list | tuple | range):
        return [_plain(one) for one in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else value


class Plan(SimpleNamespace):
    """A plan: its attributes are the keys of ``planner suggest --json --brief`` about plans, an absent one is None.

    Times are objects of ``value``, ``low`` and ``high`` in seconds; ``prediction`` has every term.
    """

    position: int
    prediction: Prediction
    _framework: Framework

    @classmethod
    def of(cls, subject: Subject, plan: RankedPlan, run: Run | None = None) -> Plan:
        """Return a ranked plan; ``subject``: what it shares with others; ``run``: the training."""
        figures, framework = plan_figures(subject, plan, run), plan.subject(subject).settings.framework
        return cls(**figures, why=plan.why, prediction=plan.prediction, _framework=framework)

    def __repr__(self) -> str:
        configuration: Configuration = self.prediction.configuration
        words = configuration_words(configuration, self.device, (), self._framework)
        of_epoch = f", epoch {format_duration(self.epoch_s.value)}" if self.prediction.epoch_s else ""
        step = format_duration(self.prediction.iteration_s.value)
        return f"Plan {self.position}: {words}, mini-batch {self.mini_batch:g}, step {step}{of_epoch}"

    def to_row(self) -> dict[str, Any]:
        """Return the attributes that are plain; of times the value, and the ends as ``epoch_s_low``, ``_high``."""
        row: dict[str, Any] = {"position": self.position}
        for key, one in vars(self).items():
            if isinstance(one, Quantity):
                row |= {key: one.value, f"{key}_low": one.low, f"{key}_high": one.high}
            elif isinstance(one, str | int | float):
                row[key] = one
        return row


class Answer:
    """Predictions of plans, in the order of the request.

    ``plans``: list of Plan. ``warnings``: list of str.
    """

    def __init__(self, text: str) -> None:
        self._json = text
        self._answers: Answers = parse_answers(text, "answer").with_frameworks(catalog.recorded)
        self.plans = [Plan.of(*one) for one in self._ranked()]
        of_predictions = (warning for _, one in self._answers.predictions for warning in one.warnings)
        of_suggestions = (warning for _, one in self._answers.suggestions for warning in one.warnings)
        self.warnings = list(dict.fromkeys(one.message for one in (*of_predictions, *of_suggestions)))

    def _ranked(self) -> Iterator[tuple[Subject, RankedPlan, Run | None]]:
        for at, (subject, one) in enumerate(self._answers.predictions, 1):
            yield subject, RankedPlan(at, one, ""), None

    def _blocks(self) -> Iterator[Block]:
        (subject, one), *others = every = self._answers.predictions
        yield from (predictions_answer(every, more=MORE) if others else prediction_answer(one, subject, more=MORE))

    def to_dict(self) -> dict[str, Any]:
        """Return the document that the command prints with ``--json``."""
        keys: dict[str, Any] = json.loads(self._json)
        return keys

    def to_frame(self) -> DataFrame:
        """Return a data frame with a row a plan."""
        return frame_of([plan.to_row() for plan in self.plans])

    def __repr__(self) -> str:
        stream = io.StringIO()
        print_blocks(self._blocks(), stream)
        return stream.getvalue().rstrip("\n")

    def _repr_html_(self) -> str:
        return html_of(self._blocks())


class Suggestion(Answer):
    """Ranked plans, best first; of several clusters those of the best one first.

    Attributes
    ----------
    chosen : Plan
        The one to take: of those that are tied with the first, by default the one with the fewest GPUs.
    knee : Plan or None
        The one with the fewest GPU-hours of those within twice the time of the first, where that saves a fifth of them.
    tied : list of int
        Positions of the first plan and of those tied with it.
    clusters : dict of str to float
        Of several clusters, how many times the objective of the best one's plan its own has.
    certified : bool
        Whether no better plan exists in the space that was searched.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        (_, answer), *_ = self._answers.suggestions
        self.chosen = next(one for one in self.plans if one.position == (answer.chosen or 1))
        self.knee = next((one for one in self.plans if one.position == answer.knee), None)
        self.tied, self.certified, self.clusters = list(answer.tied), answer.search.certified, dict(answer.clusters)

    def _ranked(self) -> Iterator[tuple[Subject, RankedPlan, Run | None]]:
        for subject, answer in self._answers.suggestions:
            yield from ((subject, one, answer.run) for one in answer.plans)

    def _blocks(self) -> Iterator[Block]:
        for view in suggestions_views(self._answers.suggestions, more=MORE):
            yield from view
