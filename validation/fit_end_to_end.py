"""Make calibrations/*-steps.json: what frameworks add to kernels, fitted to all measured runs of this folder.

One file for every accelerator that runs show, ``any-steps`` with what they share, for all others and for links of all
other clusters, and ``CLUSTER-links`` for every cluster that runs on several GPUs show. The held-out error of an entry
is that of the runs of its framework, accelerator and precision, each predicted by a fit without its network; of a
pooled entry that of runs predicted by a fit without their accelerator. So it is with the conformal scores of intervals.

    python -m validation.fit_end_to_end [FOLDER]
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from planner.cli.streams import note
from planner.domain.calibration import ANY_ACCELERATOR, END_TO_END, Calibration, Entry
from planner.domain.provenance import ConformalScore
from planner.domain.samples import COMMAND
from planner.fitting.end_to_end import HALF_PRECISIONS, MEASURED_MULTIPLES, EndToEnd, Observed
from planner.formats.calibration import CALIBRATION
from planner.formats.documents import write_file
from planner.scoring.intervals import scores
from planner.scoring.refit import Asked, Fitted, fit_runs, held_out_answers
from planner.sessions.runs import table_of
from planner.sources.links import BETWEEN, INSIDE, MULTIPLES, multiples_of_kind
from planner.sources.overheads import MORE_REPLICA_WAIT, REPLICA_WAIT
from validation.accuracy_answers import files_of_runs, learned_runs, timed_runs
from validation.command import existing_folder, finished, parser_of
from validation.fitted_rows import GENERIC, POOLED_PRECISIONS, Cell, Rows, few, rounded, stated
from validation.split_entries import SplitEntries

FOLDER = Path(__file__).resolve().parent
CALIBRATIONS = FOLDER.parent / "calibrations"
SPLIT = "-split"
"""In names of calibrations of runs that split transformers."""
MEASURED_KINDS = {
    INSIDE: {"nvlink", "nvswitch"} & MEASURED_MULTIPLES.keys(),
    BETWEEN: {"infiniband", "efa", "roce"} & MEASURED_MULTIPLES.keys(),
}
"""Kinds of links that were measured by themselves, inside nodes and between."""
MADE_BY = {COMMAND: "python -m validation.fit_end_to_end"}


def asked_runs(folder: Path = FOLDER) -> list[Asked]:
    """Return the measured runs of a folder's tables that fits learn from, by problem."""
    tables = (table_of(timed_runs(path), folder, {}, note) for path in files_of_runs(folder))
    return learned_runs([Asked(problem, runs) for table in tables for problem, runs in table.problems], folder)


def held_out_rows(asked: Sequence[Asked]) -> list[Rows]:
    """Return runs with their errors under both ways of leaving out."""
    found = (held_out_answers(asked, axis, processes=os.cpu_count() or 1) for axis in ("network", "gpu"))
    return [Rows(*one) for one in zip(asked, *found, strict=True)]


def calibrations(both: Fitted, rows: Sequence[Rows]) -> list[Calibration]:
    """Return calibrations for every accelerator of the runs, and for all others; those of split plans apart."""
    fitted, of_split = both.whole, SplitEntries(both.split, rows)
    cells = sorted({cell for one in rows for cell in one.cells})
    programs = (*sorted({cell[0] for cell in cells}), GENERIC)
    found = [
        _calibration(name, [entry for cell in _of_all(programs, own) for entry in _entries(fitted, cell, rows)])
        for name in sorted({cell[1] for cell in cells})
        if (own := [cell for cell in cells if cell[1] == name])
    ]
    pooled = [
        entry
        for framework in programs
        for kernels in sorted({cell[3] for cell in cells})
        for entry in _pooled(fitted, framework, kernels, rows)
    ]
    shared = _calibration(ANY_ACCELERATOR, [*pooled, *_multiples(fitted, rows)])
    return [*_with_scores(found, shared, rows), *_of_split(of_split), *_links(both, rows)]


def _of_all(programs: Sequence[str], cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells of an accelerator, of every program: what is its own, and what is the accelerator's, add up."""
    kinds = sorted({cell[1:] for cell in cells})
    return [(program, *kind) for program in programs for kind in kinds]


def _of_split(of_split: SplitEntries) -> list[Calibration]:
    """Return what runs of split plans tell, by accelerator and of all others."""
    if not of_split.rows:
        return []
    own = [_calibration(name, of_split.entries(name), SPLIT) for name in of_split.accelerators]
    shared = _calibration(ANY_ACCELERATOR, [*of_split.pooled(), *of_split.multiples()], SPLIT)
    return _with_scores(own, shared, of_split.rows)


def _with_scores(own: Sequence[Calibration], shared: Calibration, rows: Sequence[Rows]) -> list[Calibration]:
    """Return calibrations with conformal scores of rows left out: by network, and by GPU of what all share.

    Of the latter none is below that by network: what no run shows is not surer than what runs show.
    """
    seen = _few_scores(scores([one for some in rows for one in some.by_network]))
    by_gpu = _few_scores(scores([one for some in rows for one in some.by_gpu]))
    unseen = {name: max(one, seen.get(name, one), key=_width) for name, one in by_gpu.items()}
    return [*(replace(one, conformal=seen) for one in own), replace(shared, conformal=unseen)]


def _width(score: ConformalScore) -> float:
    return math.inf if score.half_width is None else score.half_width


def _few_scores(found: Mapping[str, ConformalScore]) -> dict[str, ConformalScore]:
    return {
        name: one if one.half_width is None else replace(one, half_width=few(one.half_width))
        for name, one in found.items()
    }


def _multiples(fitted: EndToEnd, rows: Sequence[Rows]) -> Iterator[Entry]:
    """Yield by what specified links are slower on clusters that no run shows: of each kind that runs show, and of any.

    Nothing where no run is on several GPUs.
    """
    several = [(one, part) for one in rows for each in one.asked.observed if (part := each.joint)]
    if not several:
        return
    found: dict[str, tuple[dict[str, str], list[tuple[Rows, Observed]]]] = {MULTIPLES: ({}, several)}
    for where in (INSIDE, BETWEEN):
        shown = {part.properties[where] for _, part in several if where in part.properties}
        for kind in sorted(shown | MEASURED_KINDS[where]):
            some = [(one, part) for one, part in several if part.properties.get(where) == kind]
            found[multiples_of_kind(where, kind)] = ({where: kind}, some)
    links = {"bytes_inside": "intra_node", "bytes_between": "inter_node"}
    for library, (properties, some) in found.items():
        values, errors = fitted.coefficients(properties), fitted.deviations(properties)
        yield Entry(
            "collectives", "all_reduce", "", "", library, "collective.alpha_beta", {},
            {"messages_inside": 1.0, "messages_between": 1.0}
            | {name: few(values[link]) for name, link in links.items()},
            {name: few(errors[link]) for name, link in links.items()},
            fixed=("messages_inside", "messages_between"),
            samples=sum(part.measured_s.size for _, part in some),
            estimator=END_TO_END,
            origin="published",
            source=", ".join(sorted({one.asked.runs[0].source for one, _ in some})) or "nccl-tests (docs/numbers.md)",
            notes="not times: multiples of the latency and of the time a byte that links are specified with",
        )  # fmt: skip


def _links(fitted: Fitted, rows: Sequence[Rows]) -> Iterator[Calibration]:
    """Yield the collectives of every cluster, as the framework with most runs on several GPUs there uses them."""
    several: dict[str, list[tuple[int, Observed]]] = {}
    for one in rows:
        for observed in (*one.asked.observed, *one.asked.split):
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
            entry = replace(entry, coefficients=rounded(entry.coefficients), samples=samples)
            if cluster in fitted.clusters:
                there, elsewhere = (fitted.whole.coefficients(one) for one in ({"cluster": cluster}, {}))
                more = few(there[REPLICA_WAIT] - elsewhere[REPLICA_WAIT])
                entry = replace(entry, settings={**entry.settings, MORE_REPLICA_WAIT: more})
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


def _calibration(accelerator: str, entries: Sequence[Entry], part: str = "") -> Calibration:
    sources = tuple(sorted({name for entry in entries for name in entry.source.split(", ")}))
    return Calibration(
        f"{accelerator}{part}-steps",
        accelerator,
        tuple(entries),
        origin="published",
        source="measured runs, by the names of validation/SOURCES.toml: " + ", ".join(sources),
        environment=MADE_BY,
        seen=sources,
    )


def _entries(fitted: EndToEnd, cell: Cell, rows: Sequence[Rows]) -> Iterator[Entry]:
    """Yield the entries of one program on one accelerator, one for every precision of the class that it has.

    Versions that runs there show have entries of their own beside those of any. Errors are those of its runs there, or
    of other programs' where there are none.
    """
    properties = dict(zip(("program", "accelerator", "precision", "kernels"), cell, strict=True))
    alike = [one for one in rows if any(each[1:] == cell[1:] for each in one.cells)]
    mine = [one for one in alike if cell in one.cells]
    has = alike[0].asked.problem.cluster.node.accelerator.peak_flop_per_s
    shown: list[tuple[dict[str, str], str, list[Rows]]] = [({}, cell[0], mine or alike)]
    shown += [
        ({"version": version}, f"{cell[0]}@{version}", [one for one in mine if one.version == version])
        for version in sorted({one.version for one in mine} - {""})
    ]
    for precision in sorted(HALF_PRECISIONS & set(has)) if cell[2] == "half" else (cell[2],):
        for of_version, kind, some in shown:
            entry = fitted.overheads(properties | of_version, precision, kind)
            yield stated(entry, some, [one.by_network for one in some])


def _pooled(fitted: EndToEnd, framework: str, kernels: str, rows: Sequence[Rows]) -> Iterator[Entry]:
    """Yield what is known of a framework, or of any, on accelerators that no run shows."""
    named = {} if framework == GENERIC else {"program": framework}
    mine = [one for one in rows if any(cell[3] == kernels and framework in (cell[0], GENERIC) for cell in one.cells)]
    for precision, precision_class in POOLED_PRECISIONS.items() if mine else ():
        entry = fitted.overheads({**named, "precision": precision_class, "kernels": kernels}, precision, framework)
        yield stated(entry, mine, [one.by_gpu for one in mine])


def main(arguments: list[str] | None = None) -> int:
    """Write the files; return the exit code."""
    parser = parser_of("validation.fit_end_to_end", __doc__)
    parser.add_argument(
        "folder", nargs="?", type=existing_folder, default=CALIBRATIONS, help="for the files; default: calibrations/"
    )
    parser.add_argument("--split", action="store_true", help="only what plans that split transformers tell")
    given = parser.parse_args(arguments)
    return finished(lambda: (_write_split if given.split else _write)(given.folder))


def _write(folder: Path) -> None:
    asked = asked_runs()
    _write_all(folder, calibrations(fit_runs(asked), held_out_rows(asked)))


def _write_split(folder: Path) -> None:
    """Write what runs of split plans tell, and links of their clusters; other files stay."""
    asked = [one for one in asked_runs() if one.split]
    found = calibrations(fit_runs(asked), held_out_rows(asked))
    _write_all(folder, [one for one in found if one.cluster or f"{SPLIT}-" in one.name])


def _write_all(folder: Path, found: Sequence[Calibration]) -> None:
    for one in found:
        write_file(folder / f"{one.name}.json", CALIBRATION.dump(one), force=True)


if __name__ == "__main__":
    sys.exit(main())
