"""``planner sweep``: the objective against nodes and sub-batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.cli import output
from planner.cli.request import allowed_request, check_not_refined, gather, provenance, resolve, settings_named
from planner.cli.streams import note
from planner.cli.suggest import StoppableSearch, check_found, check_price, wanted, write
from planner.cli.suggest import answer as suggested
from planner.errors import ParameterError
from planner.formats.documents import write_file
from planner.formats.summaries import sweep_document
from planner.report.studies import sweep_plot, sweep_view
from planner.search.studies import sweep

__all__ = ["run"]


def run(arguments: Mapping[str, Any]) -> None:
    """Sweep: one network on one cluster.

    NothingFitsError (exit code 4) where no plan fits, behind the answer of ``suggest``: what comes nearest.
    """
    values = wanted(gather("sweep", arguments))
    plot = output.plot_file(values)
    with settings_named(values):
        _, cases = resolve(values)
        if len(cases) > 1:
            rule = "one network, framework and scenario, as a table is of one"
            raise ParameterError("a sweep", rule, f"{len(cases)} of them", "run it once for each")
        case = cases[0]
        check_price(case.problem, values)
        request = allowed_request(case, values)
        check_not_refined(request, "sweep")
        search = StoppableSearch()
        with search.watch() as stopped:
            of_request = provenance(case, request)
            answer = sweep(case.problem, request, of_request, stopped)
            nearest = [] if answer.plans or stopped() else [suggested(cases, values)]
            if nearest and nearest[0][1].plans:  # of the nearest mini-batch
                width: Any = (tolerance := nearest.pop()[1].request["tolerance"]).value
                request = request.changed(tolerance_sync=width["sync"])
                answer = sweep(case.problem, request, {**of_request, "tolerance": tolerance}, stopped)
        if search.is_interrupted and not answer.plans:
            raise KeyboardInterrupt
    if nearest:
        write(nearest, arguments)
        check_found(nearest)
    if "json" in arguments:
        output.write_document(sweep_document(case.subject, answer))
    else:
        output.write_view(sweep_view(answer, case.subject))
    if plot:
        write_file(plot, sweep_plot(answer, case.subject, output.form_of(plot)), "force" in arguments)
        note(f"objective against nodes in {plot}")
    if search.is_interrupted:
        raise KeyboardInterrupt
