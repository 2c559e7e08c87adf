"""``planner suggest``: ranked plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from planner.cli import output
from planner.cli.inputs import Case, Machine
from planner.cli.parsing import NOTHING
from planner.cli.request import gather, ordered, resolve
from planner.cli.values import DEFAULT, OPTION, Values, merge
from planner.domain.request import Sourced, SpaceRequest
from planner.domain.suggestion import Suggestion
from planner.errors import NothingFitsError, ParameterError
from planner.formats.suggestion import suggestion_document, suggestions_document
from planner.report.suggestion import suggestion_view
from planner.search.suggest import suggest

__all__ = ["answer", "run", "space_request"]


def run(arguments: Mapping[str, Any]) -> None:
    """Answer a request: gather values, resolve names, search, write; NothingFitsError when an answer has no plan."""
    values = gather("suggest", arguments)
    if "target_batch" not in values:
        raise ParameterError("--target-batch", "given", NOTHING, "say the wanted mini-batch in samples")
    machine, resolved = resolve(values)
    suggestions = [answer(case, values) for case in resolved]
    _write(suggestions, machine, as_json="json" in arguments)
    _check_found(suggestions)


def space_request(values: Values) -> SpaceRequest:
    """Return what to search over; a value that is not given keeps the default of the record."""
    fields = {
        "nodes": "nodes", "gpus_per_node": "gpus_per_node", "sub_batch": "sub_batch", "accumulation": "accumulation",
        "precision": "precisions", "mode": "modes", "objective": "objective", "top": "top", "pareto": "pareto",
        "parallelism": "parallelism",
    }  # fmt: skip
    chosen = {field: values[name].value for name, field in fields.items() if name in values}
    if "tolerance" in values:
        chosen |= dict.fromkeys(("tolerance_sync", "tolerance_async"), values["tolerance"].value)
    return SpaceRequest(values["target_batch"].value, **chosen)


def answer(case: Case, values: Values) -> Suggestion:
    """Return the plans of one network under one scenario."""
    request = space_request(values)
    return suggest(case.problem, request, provenance(case, request))


def provenance(case: Case, request: SpaceRequest) -> Mapping[str, Sourced[object]]:
    """Return every value of the request with its source, defaults in words where they depend on the plan."""
    cluster = case.problem.cluster
    accumulation = (1,) if request.modes == ("async",) else "1 when asynchronous, else what reaches the target"
    tolerances = [f"{request.tolerance(mode):.3g} {mode}" for mode in request.modes]
    tolerance = request.tolerance(request.modes[0]) if len(tolerances) == 1 else ", ".join(tolerances)
    defaults: Values = {
        "target_batch": Sourced(request.target_batch, OPTION),
        "mode": Sourced(request.modes, DEFAULT),
        "tolerance": Sourced(tolerance, DEFAULT),
        "nodes": Sourced(f"1:{cluster.nodes}", "cluster"),
        "gpus_per_node": Sourced((cluster.node.gpus,), "cluster"),
        "sub_batch": Sourced("1 to the largest that fits", DEFAULT),
        "accumulation": Sourced(accumulation, DEFAULT),
        "precision": Sourced("every one with a usable sub-model", DEFAULT),
        "objective": Sourced(request.objective, DEFAULT),
        "top": Sourced(request.top, DEFAULT),
        "pareto": Sourced(request.pareto, DEFAULT),
        "parallelism": Sourced(request.parallelism, DEFAULT),
    }
    return ordered(merge(case.sources, defaults))


def _write(suggestions: Sequence[Suggestion], machine: Machine, *, as_json: bool) -> None:
    if as_json:
        several = len(suggestions) > 1
        output.write_document(suggestions_document(suggestions) if several else suggestion_document(suggestions[0]))
        return
    output.write_views(suggestion_view(one, machine.calibrations) for one in suggestions)


def _check_found(suggestions: Sequence[Suggestion]) -> None:
    """Raise NothingFitsError, saying what to loosen, unless every suggestion has a plan."""
    for suggestion in suggestions:
        if not suggestion.plans:
            target = suggestion.request["target_batch"].value
            ways = "; or ".join(one.message for one in suggestion.loosen)
            raise NothingFitsError(
                f"no plan of the space reaches --target-batch {target}" + (f"; {ways}" if ways else "")
            )
