"""A search by Optuna as options say it, and the request that a study keeps for workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner import catalog
from planner.cli.options import OPTIONS
from planner.cli.request import PRINTING_OPTIONS, SEARCHING_OPTIONS
from planner.cli.streams import note
from planner.cli.termination import interruption
from planner.cli.values import from_settings, in_full
from planner.domain.request import SpaceRequest
from planner.errors import ParameterError, PlannerError
from planner.sessions.inputs import Case
from planner.sessions.values import DEFAULT_REQUEST, OPTION, SETTINGS_FILE, Values, merge

if TYPE_CHECKING:
    from planner.search.optuna_search import OptunaSearch
    from planner.search.optuna_study import StudyPlace

__all__ = ["DEFAULT_TRIALS", "kept_options", "say_trials", "searcher_of", "values_kept"]

DEFAULT_TRIALS = 200
_NOT_KEPT = PRINTING_OPTIONS | SEARCHING_OPTIONS | {"seed", "top", "choose", "epochs", "why_not", "sensitivity"}
"""Options that change no trial."""
_SOURCES = (OPTION, SETTINGS_FILE, DEFAULT_REQUEST)


def searcher_of(
    values: Values,
    cases: Sequence[Case],
    request_of: Callable[[Case, Values], SpaceRequest],
    options: Mapping[str, Any],
) -> OptunaSearch | None:
    """Return the search that ``--search optuna`` asks for; None: an exact one. ``options``: as a study keeps them.

    Raises
    ------
    ParameterError
        What belongs to a search by Optuna is given without it; or there are several questions, as a study is of one.
    """
    if "search" not in values or values["search"].value == "exact":
        for name in ("trials", "study"):
            if name in values:
                raise ParameterError(f"--{name}", "given with --search optuna", values[name].value)
        return None
    if "time_limit" in values:
        rule = "given with --search exact"
        raise ParameterError("--time-limit", rule, values["time_limit"].value, "give --trials")
    from planner.search.fingerprint import fingerprints  # noqa: PLC0415 - only this search needs it
    from planner.search.optuna_search import OptunaSearch  # noqa: PLC0415 - as above
    from planner.search.optuna_study import StudyPlace  # noqa: PLC0415 - as above

    if len(cases) > 1:
        rule = "of one network, framework and scenario, as a study is of one"
        raise ParameterError("--search optuna", rule, f"{len(cases)} of them", "run it once for each")
    return OptunaSearch(
        values["trials"].value if "trials" in values else DEFAULT_TRIALS,
        StudyPlace(values["study"].value if "study" in values else ""),
        values["seed"].value if "seed" in values else 0,
        fingerprints(cases[0].problem, request_of(cases[0], values)),
        options,
        interruption=interruption,
    )


def say_trials(searcher: OptunaSearch | None) -> None:
    """Say how many trials a study had, and raise KeyboardInterrupt where the search was interrupted."""
    if searcher is None:
        return
    if searcher.place.where:
        note(f"study {searcher.place.shown}: {searcher.trials_before} trials before, {searcher.trials_here} more")
    if searcher.is_interrupted:
        goes_on = "the same command goes on" if searcher.place.where else "with --study FILE it could go on"
        note(f"the best of {searcher.trials_before + searcher.trials_here} trials; {goes_on}")
        raise KeyboardInterrupt


def kept_options(values: Values, arguments: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return by source the options that change trials, as they were typed."""
    of_file = any(one.source == SETTINGS_FILE for one in values.values())
    settings = catalog.read_settings(Path.cwd()) if of_file else None
    texts = (arguments, settings[1] if settings else {}, catalog.default_request())
    typed: dict[str, Mapping[str, Any]] = dict(zip(_SOURCES, texts, strict=True))
    return {
        source: {
            name: text
            for name, text in typed[source].items()
            if name not in _NOT_KEPT and (source == OPTION or (name in values and values[name].source == source))
        }
        for source in _SOURCES
    }


def values_kept(place: StudyPlace, options: Mapping[str, Any]) -> Values:
    """Return the values of options that a study keeps; InputFileError where they are none."""
    for source, typed in options.items():
        if source not in _SOURCES or not isinstance(typed, Mapping) or not typed.keys() <= OPTIONS.keys() - _NOT_KEPT:
            raise place.wrong("options must be those of suggest, by source", typed, source)
    try:
        of_source = [from_settings(options.get(source, {}), source, "suggest") for source in _SOURCES]
        return in_full(merge(*of_source))
    except PlannerError as error:
        raise place.wrong("options must be values that suggest accepts", str(error)) from error
