"""``planner search-worker``: more trials of a study, here or on another machine."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from planner import __version__
from planner.cli.optuna import DEFAULT_TRIALS, say_trials, searcher_of, values_kept
from planner.cli.request import resolve
from planner.cli.search_request import allowed_request
from planner.cli.suggest import answer, write
from planner.cli.values import from_options
from planner.domain.request import Sourced
from planner.errors import NOTHING, ParameterError
from planner.search.optuna_study import StudyPlace
from planner.sessions.values import OPTION

__all__ = ["run"]


def run(arguments: Mapping[str, Any]) -> None:
    """Make the request that the study keeps, and run trials of it; refuse other inputs, or another version.

    Names and files are looked up here: what they hold must be what it was where the study was made.
    """
    own = from_options(arguments)
    if "storage" not in own:
        raise ParameterError("--storage", "given", NOTHING, "say what suggest had as --study")
    place = StudyPlace(own["storage"].value, "--storage")
    inputs, options = place.load()
    place.check_inputs(inputs, {"planner": __version__})
    trials = own.get("trials", Sourced(DEFAULT_TRIALS, OPTION))
    seed = own.get("seed", Sourced(secrets.randbits(32), OPTION))  # workers must not propose the same plans
    search = {"search": Sourced("optuna", OPTION), "trials": trials, "seed": seed}
    values = {**values_kept(place, options), **search}
    _, cases = resolve(values)
    searcher = searcher_of(values, cases, allowed_request, options)
    if searcher is None:
        return
    searcher = replace(searcher, place=place, starts=False)
    write([answer(cases, values, searcher)], None, arguments)
    say_trials(searcher)
