"""``planner suggest --why-not``: why plans with certain values are not the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from planner.cli import output
from planner.cli.options import OPTIONS
from planner.cli.request import Allowed, check_not_refined, provenance
from planner.cli.streams import note
from planner.domain.axes import AXES
from planner.domain.request import Subject
from planner.domain.suggestion import WhyNot
from planner.errors import ParameterError, PlannerError, UnknownNameError
from planner.formats.summaries import why_not_document
from planner.report.studies import why_not_view
from planner.search.searchable import searchable_among
from planner.search.studies import Among, why_nots
from planner.sessions.inputs import OPTION, Values

__all__ = ["write_why_nots"]

_OF_RANKING = ("pareto", "sensitivity", "switches", "choose", "search", "trials", "study", "time_limit")
"""Options that an answer about other plans has no use for."""
_FRAMEWORK = "framework"


def write_why_nots(questions: Sequence[Allowed], values: Values, arguments: Mapping[str, Any]) -> None:
    """Write, of every network and scenario, why plans with the values of --why-not are not the answer.

    Of several frameworks each has an answer of its own, or that which the values name.

    UnknownNameError: a key is no option of a plan.
    ParameterError: a value breaks the rule of its option; or several answers are wanted as one document.
    """
    given = [key for key in _OF_RANKING if key in values and values[key].source == OPTION]
    given += ["brief"] if "brief" in arguments else []
    if given:
        rule, remedy = "given without options of a ranking", "leave one of them out"
        raise ParameterError("--why-not", rule, f"--{given[0].replace('_', '-')}", remedy)
    asked, framework = _asked(values)
    answers = [one for question in questions for one in _answers(question, asked, framework)]
    if "json" not in arguments:
        output.write_views(why_not_view(one, subject) for subject, one in answers)
        return
    if len(answers) > 1:
        rule = "of one network, framework and scenario with --json"
        raise ParameterError("--why-not", rule, f"{len(answers)} of them", "run it once for each")
    output.write_document(why_not_document(*answers[0]))


def _asked(values: Values) -> tuple[dict[str, tuple[Any, ...]], str]:
    """Return the values asked about by axis, and the framework, if one is named."""
    by_option = {axis.option: axis for axis in AXES}
    asked: dict[str, tuple[Any, ...]] = {}
    given = dict(values["why_not"].value)
    framework = given.pop(_FRAMEWORK, "")
    for key, text in given.items():
        axis = by_option.get(key.replace("-", "_"))
        if axis is None:
            names = [_FRAMEWORK, *(name.replace("_", "-") for name in by_option)]
            raise UnknownNameError("key of --why-not", key, names)
        parsed = OPTIONS[axis.option].parse(f"{key} in --why-not", text)
        asked[axis.name] = parsed if isinstance(parsed, tuple) else (parsed,)
    return asked, framework


def _answers(question: Allowed, asked: Mapping[str, tuple[Any, ...]], framework: str) -> list[tuple[Subject, WhyNot]]:
    """Return the answers of one question, one a framework, or that of the one named."""
    cases, errors = question
    is_one = len(cases) + len(errors) == 1
    left_out: dict[str, PlannerError] = dict(errors)
    for _, request in cases:
        check_not_refined(request, "--why-not")
    subjects = {case.problem.settings.framework.label: case.subject for case, _ in cases}
    told = {case.problem.settings.framework.label: provenance(case, request) for case, request in cases}
    searchable = searchable_among([(case.problem, request) for case, request in cases], left_out)
    labels = [one.label for one in searchable]
    if framework in left_out:
        raise left_out[framework]
    if framework and framework not in labels:
        rule, remedy = f"one of those of --framework, {', '.join(labels)}", "name it in --framework too"
        raise ParameterError("framework in --why-not", rule, framework, remedy)
    if not searchable:
        raise next(iter(left_out.values()))
    for label, error in left_out.items():
        note(f"{label} is left out: {error}")
    among = [
        Among(
            one.request,
            one.limits,
            one.evaluator,
            one.order,
            told[label],
            None if is_one else one.problem.settings.framework,
        )
        for label, one in zip(labels, searchable, strict=True)
    ]
    answers = zip(labels, why_nots(among, asked), strict=True)
    return [(subjects[label], one) for label, one in answers if framework in ("", label)]
