"""Make calibrations/*-steps.json: what frameworks add to kernels, fitted to all measured runs of this folder.

One file for every accelerator that runs show, ``any-steps`` with what they share, for all others and for links of all
other clusters, and ``CLUSTER-links`` for every cluster that runs on several GPUs show. The held-out error of an entry
is that of the runs of its framework, accelerator and precision, each predicted by a fit without its network; of a
pooled entry that of runs predicted by a fit without their accelerator. So it is with the conformal scores of intervals.

    python -m validation.fit_end_to_end [FOLDER]
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from planner.cli.streams import note
from planner.domain.calibration import ANY_ACCELERATOR, END_TO_END, Calibration, ConformalScore, Entry
from planner.domain.samples import COMMAND
from planner.fitting.end_to_end import HALF, EndToEnd, Observed, properties_of
from planner.formats.calibration import write_calibration
from planner.formats.documents import write_file
from planner.formats.runs import read_runs
from planner.scoring.evaluate import Answer
from planner.scoring.intervals import scores
from planner.scoring.refit import Asked, fit_runs, held_out_answers
from planner.sessions.runs import table_of
from planner.sources.links import MULTIPLES
from validation.command import existing_folder, finished, parser_of

FOLDER = Path(__file__).resolve().parent
CALIBRATIONS = FOLDER.parent / "calibrations"
COMPOSED = ("vtrain-single",)
"""Sources whose rows a formula made: not measured."""
GENERIC = "generic"
POOLED_PRECISIONS = {"": "fp32", "fp16": "half", "bf16": "half", "tf32": "tf32"}
"""Precision of a pooled entry -> the class of precisions that it takes its effects from."""
MADE_BY = {COMMAND: "python -m validation.fit_end_to_end"}
DIGITS = 4
"""Significant digits that are stored: fits agree in them on every machine."""

Cell = tuple[str, str, str, str]
"""Framework, accelerator, class of precisions, measured or specified kernels."""


@dataclass(frozen=True)
class Rows:
    """Runs of one problem, with their errors when their network, or their accelerator, took no part in the fit."""

    asked: Asked
    by_network: Sequence[Answer]
    by_gpu: Sequence[Answer]

    @property
    def version(self) -> str:
        """Of the framework and its libraries; empty where it is not known."""
        return self.asked.problem.settings.framework.version

    @cached_property
    def cells(self) -> frozenset[Cell]:
        """What the coefficients of the runs that a fit learns from belong to."""
        names = [one.configurations.precisions[0] for one in self.asked.observed]
        found = [properties_of(self.asked.problem, name) for name in names]
        return frozenset((one["framework"], one["accelerator"], one["precision"], one["kernels"]) for one in found)


def asked_runs(folder: Path = FOLDER) -> list[Asked]:
    """Return the measured runs of a folder's tables, by problem."""
    paths = [path for path in sorted(folder.glob("*.csv")) if path.stem not in COMPOSED]
    tables = (table_of(read_runs(path), folder, {}, note) for path in paths)
    return [Asked(problem, runs) for table in tables for problem, runs in table.asked]


def held_out_rows(asked: Sequence[Asked]) -> list[Rows]:
    """Return runs with their errors under both ways of leaving out."""
    both = zip(asked, held_out_answers(asked, "network"), held_out_answers(asked, "gpu"), strict=True)
    return [Rows(*one) for one in both]


def calibrations(fitted: EndToEnd, rows: Sequence[Rows]) -> list[Calibration]:
    """Return one calibration for every accelerator of the runs, and one for all others."""
    cells = sorted({cell for one in rows for cell in one.cells})
    found = [
        _calibration(name, [entry for cell in cells if cell[1] == name for entry in _entries(fitted, cell, rows)])
        for name in sorted({cell[1] for cell in cells})
    ]
    pooled = [
        entry
        for framework in (*sorted({cell[0] for cell in cells}), GENERIC)
        for kernels in sorted({cell[3] for cell in cells})
        for entry in _pooled(fitted, framework, kernels, rows)
    ]
    seen = scores([one for some in rows for one in some.by_network])
    unseen = scores([one for some in rows for one in some.by_gpu])
    own = [replace(one, conformal=_few_scores(seen)) for one in found]
    shared = replace(_calibration(ANY_ACCELERATOR, [*pooled, *_multiples(fitted, rows)]), conformal=_few_scores(unseen))
    return [*own, shared, *_links(fitted, rows)]


def _few_scores(found: Mapping[str, ConformalScore]) -> dict[str, ConformalScore]:
    return {name: one if one.score is None else replace(one, score=_few(one.score)) for name, one in found.items()}


def _multiples(fitted: EndToEnd, rows: Sequence[Rows]) -> Iterator[Entry]:
    """Yield by what specified links are slower on clusters that no run shows; nothing where none is on several GPUs."""
    several = [(one.asked.runs[0].source, part) for one in rows for each in one.asked.observed if (part := each.joint)]
    values, errors = fitted.coefficients({}), fitted.deviations({})
    if several:
        links = {"bytes_inside": "intra_node", "bytes_between": "inter_node"}
        scales = {name: _few(values[link]) for name, link in links.items()}
        yield Entry(
            "collectives", "all_reduce", "", "", MULTIPLES, "collective.alpha_beta", {},
            {"messages_inside": 1.0, "messages_between": 1.0, **scales},
            {name: _few(errors[link]) for name, link in links.items()},
            fixed=("messages_inside", "messages_between"),
            samples=sum(part.measured_s.size for _, part in several),
            estimator=END_TO_END,
            origin="published",
            source=", ".join(sorted({name for name, _ in several})),
            notes="not times: multiples of the latency and of the time a byte that links are specified with",
        )  # fmt: skip


def _links(fitted: EndToEnd, rows: Sequence[Rows]) -> Iterator[Calibration]:
    """Yield the collectives of every cluster, as the framework with most runs on several GPUs there uses them."""
    several: dict[str, list[tuple[int, Observed]]] = {}
    for one in rows:
        for observed in one.asked.observed:
            count = int((observed.configurations.gpus > 1).sum())
            several.setdefault(one.asked.problem.cluster.name, []).append((count, observed))
    for cluster, counted in sorted(several.items()):
        samples = sum(count for count, _ in counted)
        if samples:
            most = max(counted, key=lambda each: (each[0], each[1].properties["framework"]))[1]
            (entry,) = (
                entry
                for one in fitted.calibrations(most.problem, most.configurations.precisions)
                for entry in one.entries
                if entry.scope == "collectives"
            )
            entry = replace(entry, coefficients=_rounded(entry.coefficients), samples=samples)
            name = f"{cluster}-links"
            yield Calibration(
                name,
                ANY_ACCELERATOR,
                (entry,),
                cluster=cluster,
                origin="published",
                source=entry.source,
                environment=MADE_BY,
            )


def _calibration(accelerator: str, entries: Sequence[Entry]) -> Calibration:
    sources = tuple(sorted({name for entry in entries for name in entry.source.split(", ")}))
    return Calibration(
        f"{accelerator}-steps",
        accelerator,
        tuple(entries),
        origin="published",
        source="measured runs, by the names of validation/SOURCES.toml: " + ", ".join(sources),
        environment=MADE_BY,
        seen=sources,
    )


def _entries(fitted: EndToEnd, cell: Cell, rows: Sequence[Rows]) -> Iterator[Entry]:
    """Yield the entries of one framework on one accelerator, one for every precision of the class that it has.

    Where runs show several versions, each has entries of its own beside those for any.
    """
    properties = dict(zip(("framework", "accelerator", "precision", "kernels"), cell, strict=True))
    mine = [one for one in rows if cell in one.cells]
    versions = sorted({one.version for one in mine} - {""})
    shown: list[tuple[dict[str, str], str, list[Rows]]] = [({}, "", mine)]
    if len(versions) > 1:
        shown += [
            ({"version": name}, f"{cell[0]}@{name}", [one for one in mine if one.version == name]) for name in versions
        ]
    has = mine[0].asked.problem.cluster.node.accelerator.peak_flop_per_s
    for precision in sorted(HALF & set(has)) if cell[2] == "half" else (cell[2],):
        for version, kind, some in shown:
            entry = fitted.overheads(properties | version, precision, kind)
            yield _stated(entry, some, [one.by_network for one in some])


def _pooled(fitted: EndToEnd, framework: str, kernels: str, rows: Sequence[Rows]) -> Iterator[Entry]:
    """Yield what is known of a framework, or of any, on accelerators that no run shows."""
    named = {} if framework == GENERIC else {"framework": framework}
    mine = [one for one in rows if any(cell[3] == kernels and framework in (cell[0], GENERIC) for cell in one.cells)]
    for precision, precision_class in POOLED_PRECISIONS.items() if mine else ():
        entry = fitted.overheads({**named, "precision": precision_class, "kernels": kernels}, precision, framework)
        yield _stated(entry, mine, [one.by_gpu for one in mine])


def _stated(entry: Entry, rows: Sequence[Rows], answers: Iterable[Sequence[Answer]]) -> Entry:
    """Return an entry with the errors and sources of the runs behind it, in few digits."""
    errors = np.array([abs(one.row.error) for some in answers for one in some if one.row.error is not None])
    sources = sorted({one.asked.runs[0].source for one in rows if one.asked.observed})
    return replace(
        entry,
        coefficients=_rounded(entry.coefficients),
        standard_errors=_rounded(entry.standard_errors),
        samples=int(errors.size),
        held_out_error=_few(float(errors.mean())) if errors.size else None,
        held_out_by="group" if errors.size else "",
        worst_error=_few(float(errors.max())) if errors.size else None,
        source=", ".join(sources),
    )


def _rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {name: _few(value) for name, value in values.items()}


def _few(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def main(arguments: list[str] | None = None) -> int:
    """Write the files; return the exit code."""
    parser = parser_of("validation.fit_end_to_end", __doc__)
    parser.add_argument(
        "folder", nargs="?", type=existing_folder, default=CALIBRATIONS, help="for the files; default: calibrations/"
    )
    given = parser.parse_args(arguments)
    return finished(lambda: _write(given.folder))


def _write(folder: Path) -> None:
    asked = asked_runs()
    for one in calibrations(fit_runs(asked), held_out_rows(asked)):
        write_file(folder / f"{one.name}.json", write_calibration(one), force=True)


if __name__ == "__main__":
    sys.exit(main())
