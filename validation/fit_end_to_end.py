"""Make calibrations/any-steps.json: what programs and links add to kernels, fitted to all measured runs of this folder.

Conformal scores of intervals are of runs that are each predicted by a fit without their accelerator; none is below that
by network.

    python -m validation.fit_end_to_end [FOLDER]
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np

from planner.cli.streams import note
from planner.domain.calibration import ANY_ACCELERATOR, Calibration, Entry
from planner.domain.provenance import ConformalScore
from planner.domain.samples import COMMAND
from planner.fitting.step_fit import HALF_PRECISIONS, MEASURED_MULTIPLES, StepFit
from planner.formats.calibration import CALIBRATION
from planner.formats.documents import write_file
from planner.scoring.evaluate import Answer
from planner.scoring.refit import Asked, fit_runs, held_out_answers, scores
from planner.sessions.runs import table_of
from planner.sources.links import BETWEEN, INSIDE
from planner.sources.overheads import DATASHEET_LIBRARY
from validation.accuracy_answers import files_of_runs, learned_runs, timed_runs
from validation.command import existing_folder, finished, parser_of

FOLDER = Path(__file__).resolve().parent
CALIBRATIONS = FOLDER.parent / "calibrations"
KINDS: Mapping[str, frozenset[str]] = {
    INSIDE: frozenset({"nvlink", "nvswitch"}),
    BETWEEN: frozenset({"infiniband", "efa", "roce"}),
}
"""Of links that were measured by themselves, inside nodes and between: links.multiples of docs/numbers.md."""
DIGITS = 4
"""Significant digits that are stored: fits agree in them on every machine."""


def asked_runs(folder: Path = FOLDER) -> list[Asked]:
    """Return the measured runs of a folder's tables that fits learn from, by problem."""
    tables = (table_of(timed_runs(path), folder, {}, note) for path in files_of_runs(folder))
    return learned_runs([Asked(problem, runs) for table in tables for problem, runs in table.problems], folder)


def calibration(
    fitted: StepFit, asked: Sequence[Asked], by_axis: Mapping[str, Sequence[Sequence[Answer]]]
) -> Calibration:
    """Return what runs tell of all GPUs; ``by_axis``: their answers with the network, and with the GPU left out."""
    entries = [*_overheads(fitted, asked), *_links(fitted, asked)]
    seen = _scores(by_axis.get("network", ()))
    unseen = {name: max(one, seen.get(name, one), key=_width) for name, one in _scores(by_axis.get("gpu", ())).items()}
    return Calibration(
        f"{ANY_ACCELERATOR}-steps",
        ANY_ACCELERATOR,
        tuple(entries),
        origin="published",
        source="measured runs, by the names of validation/SOURCES.toml: " + ", ".join(fitted.sources),
        environment={COMMAND: "python -m validation.fit_end_to_end"},
        seen=fitted.sources,
        conformal=unseen,
    )


def _overheads(fitted: StepFit, asked: Sequence[Asked]) -> Iterator[Entry]:
    """Yield overheads by precision, and measured or specified kernels; ``samples``: runs on such that tell them."""
    observed = [one for each in asked for one in each.observed]
    precisions = {"": "fp32", "tf32": "tf32", **dict.fromkeys(sorted(HALF_PRECISIONS), "half")}
    for kernels, precision in product(("measured", DATASHEET_LIBRARY), precisions):
        facts = {"kernels": kernels, "precision": precisions[precision]}
        entry = fitted.overheads(facts, precision)
        yield replace(
            entry,
            coefficients=_rounded(entry.coefficients),
            standard_errors=_rounded(entry.standard_errors),
            samples=sum(one.measured_s.size for one in observed if facts.items() <= one.properties.items()),
        )


def _links(fitted: StepFit, asked: Sequence[Asked]) -> Iterator[Entry]:
    """Yield what is known of links by their kind: those that runs are over, those measured by themselves, and any."""
    observed = [one for each in asked for one in each.observed]
    for where, axis in ((INSIDE, "gpus_per_node"), (BETWEEN, "nodes")):
        rows: dict[str, int] = {}
        for one in observed:
            if where in one.properties:
                kind = one.properties[where]
                rows[kind] = rows.get(kind, 0) + int(np.sum(getattr(one.configurations, axis) > 1))
        for kind in sorted(
            {name for name, count in rows.items() if count} | (KINDS[where] & MEASURED_MULTIPLES.keys())
        ):
            (entry,) = fitted.links({where: kind})
            yield replace(
                entry,
                coefficients=_rounded(entry.coefficients),
                standard_errors=_rounded(entry.standard_errors),
                settings={name: few(value) for name, value in entry.settings.items() if isinstance(value, float)},
                samples=rows.get(kind, 0),
                source=entry.source if rows.get(kind) else "nccl-tests (docs/numbers.md)",
            )


def _scores(answers: Sequence[Sequence[Answer]]) -> dict[str, ConformalScore]:
    found = scores([one for some in answers for one in some]) if answers else {}
    return {
        name: one if one.half_width is None else replace(one, half_width=few(one.half_width))
        for name, one in found.items()
    }


def _width(score: ConformalScore) -> float:
    return math.inf if score.half_width is None else score.half_width


def _rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {name: few(value) for name, value in values.items()}


def few(value: float) -> float:
    """Return a value in DIGITS digits."""
    return float(f"{value:.{DIGITS}g}")


def main(arguments: list[str] | None = None) -> int:
    """Write the file; return the exit code."""
    parser = parser_of("validation.fit_end_to_end", __doc__)
    parser.add_argument(
        "folder", nargs="?", type=existing_folder, default=CALIBRATIONS, help="for the file; default: calibrations/"
    )
    given = parser.parse_args(arguments)
    return finished(lambda: _write(given.folder))


def _write(folder: Path) -> None:
    asked = asked_runs()
    by_axis = {axis: held_out_answers(asked, axis, processes=os.cpu_count() or 1) for axis in ("network", "gpu")}
    found = calibration(fit_runs(asked), asked, by_axis)
    write_file(folder / f"{found.name}.json", CALIBRATION.dump(found), force=True)


if __name__ == "__main__":
    sys.exit(main())
