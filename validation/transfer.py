"""Print the page of transfer between GPUs; write the scores that predictions of unmeasured GPUs have their widths from.

    python -m validation.transfer --data DIR [--check]

``DIR`` holds the tables that ``python -m validation.convert_kernels --help`` names. Kernel times of every GPU with a
bundled calibration are predicted from every other by data sheet. ``--check`` writes nothing, and fails where a score
is no longer what it was.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from planner.catalog import BUNDLED
from planner.domain.arrays import FloatArray
from planner.domain.calibration import RELATIONS, OwnPoints, Transfers
from planner.formats.calibration import TRANSFER
from planner.formats.documents import write_file
from validation.command import finished, parser_of
from validation.convert_kernels import read_tables
from validation.fit_end_to_end import asked_runs
from validation.kernel_rows import DEEPBENCH, NEUSIGHT, VIDUR
from validation.kernel_scores import measured_samples
from validation.transfer_precisions import Derived, derived_errors, further_rows, precision_scores, precisions_section
from validation.transfer_scores import OWN_POINTS, Compared, Transfer, few_own_points, fitted, scores_of, transfers
from validation.transfer_steps import DerivedSteps, StepScore, derived_steps, step_scores

__all__ = ["Found", "differences", "main", "page"]

SCORES = BUNDLED / "transfer.json"
SAME, SAME_RELATIVE = 0.002, 0.02
"""Scores that differ by less than one of these are the same: solvers differ in their last digits."""
TITLE = f"""# Kernels of a GPU from measurements of another

Written by `python -m validation.transfer --data DIR` from published kernel times, with the terms that the bundled
calibrations hold. Coefficients of FLOP are multiplied by the ratio of peak rates, of convolutions on tensor cores by
that of multiprocessors times clock where it says faster, up to the peak, those of bytes by the ratio of memory
bandwidths, launches stay, waves of tiles are counted with the other GPU's multiprocessors
(`planner/costs/specified.py`). Where the other GPU has no tensor cores for a precision, convolutions that were fitted
in tiles of their channels are taken from the fit in fp32. Errors are predicted / measured - 1 in percent, mean, median
and 90th percentile of the absolute ones; bias is their mean with its sign. A row is predicted by fits that saw neither
its GPU nor, on any other, its group (application, layer, length of rows): a new shape on a new GPU. Element-wise
kernels count from 90 us.

- {DEEPBENCH}
- {NEUSIGHT}
- {VIDUR}

## By how near the GPUs are

Means over pairs of GPUs and directions. These figures are in `planner/_bundled/transfer.json`: an entry that was scaled
takes the mean as its held-out error of single shapes, the bias as that of sums over the shapes of a network, or its own
error where that is larger; so the interval of a step is that much wider. `chip`: the same die; `architecture`: the same
generation; `vendor`; `other`: AMD from NVIDIA and the reverse. `matrix`: both multiply with tensor cores; `lanes`:
neither does; `mixed`: one does, the predicted one where it goes to `matrix`. Bias here is the mean over pairs of its
absolute value: what a whole GPU is missed by.
"""
FEW = f"""## {OWN_POINTS} points of the GPU itself

The same rows predicted by the transfer that the figures above call best, by that times one factor from {OWN_POINTS}
random rows of the GPU, by a fit to these {OWN_POINTS} rows alone, and by a fit to all; groups held out, five draws.
"""
STEPS = """## Whole training steps

The runs of `validation/` on each GPU, predicted as `--scenario gpu=` from the same cluster with another GPU: kernels
scaled, host and framework as of that other GPU. Coverage is the share of steps in the 90 % interval, width the median
of its upper over its lower end. Kernels of the GPU itself took no part, but what frameworks add was fitted to runs of
all GPUs, so these errors are a little too good.
"""
DERIVED = """Whole training steps on one GPU whose products were measured in another precision alone, from kernels and
an assumed host time: frameworks add to kernels, so that a bias above 0 is the kernels' own.
"""
DERIVED_HEAD = (
    "GPU", "precision", "source", "framework", "network", "steps", "mean", "bias", "sheet", "its bias",
)  # fmt: skip
ALL = """## Every pair

Directions of convolutions together.
"""


STEP_FIGURES = ("mean", "median", "bias", "coverage", "width")


class Found(NamedTuple):
    """All errors, the comparison with own points, the errors of precisions from one another, and the scores."""

    errors: Sequence[Transfer]
    few: Sequence[Compared]
    derived: Sequence[Derived]
    known: Transfers


def found(folder: Path) -> Found:
    """Return what the tables of a folder tell."""
    known = fitted(measured_samples(read_tables(folder)))
    errors = list(transfers(known))
    scores = scores_of(errors)
    few = list(few_own_points(known, scores))
    derived = [*derived_errors(known), *derived_errors(further_rows())]
    return Found(
        errors, few, derived, Transfers(scores, OWN_POINTS, tuple(_own_points(few)), precision_scores(derived))
    )


def _own_points(few: Iterable[Compared]) -> Iterator[OwnPoints]:
    cells: dict[tuple[str, str, str], list[Compared]] = defaultdict(list)
    for one in few:
        cells[one.units, one.key.kind.partition(",")[0], one.precision].append(one)
    for cell, rows in sorted(cells.items(), key=lambda item: item[0][1:]):
        figures = (round(_mean(rows, name), 4) for name in ("transfer", "ratio", "own", "all_own"))
        yield OwnPoints(*cell, len(rows), *figures)


def page(of: Found, steps: Iterable[StepScore] = (), derived_by: Iterable[DerivedSteps] = ()) -> str:
    """Return the text of the page."""
    errors, few, derived, known = of
    near = (
        (s.relation, s.units, s.kind, s.precision, str(s.pairs), str(s.rows),
         *map(_percent, (s.mean, s.median, s.p90, s.bias)))
        for s in known.scores
    )  # fmt: skip
    by_kind = (
        (s.units, s.kind, s.precision, str(s.devices), *map(_percent, (s.transfer, s.ratio, s.own, s.all_own)))
        for s in known.own_points
    )
    each = (
        (c.key.gpu, c.key.kind, c.key.direction or "any", c.precision, c.key.other, c.near,
         *map(_percent, (c.transfer, c.ratio, c.own, c.all_own)))
        for c in few
    )  # fmt: skip
    ways = ("transfer", "with a factor", f"{OWN_POINTS} own", "all own")
    figures = ("mean", "median", "90 %", "bias")
    parts = [
        TITLE, _table(("relation", "units", "kind", "precision", "pairs", "rows", *figures), near),
        FEW, _table(("units", "kind", "precision", "GPUs", *ways), by_kind), _verdict(few),
        _table(("GPU", "kind", "direction", "precision", "from", "relation", *ways), each),
        precisions_section(derived, _table), DERIVED, _table(DERIVED_HEAD, _derived_rows(derived_by)),
        STEPS, _table(("GPU", "from", "relation", "precision", "steps", *STEP_FIGURES), _step_rows(steps)),
        ALL, _table(("GPU", "from", "relation", "units", "kind", "precision", "rows", *figures), _pairs(errors)),
    ]  # fmt: skip
    return "\n".join(parts)


def _verdict(few: Sequence[Compared]) -> str:
    """Return how often, and by how much, the own points were better, by kind and relation."""
    cells: dict[tuple[str, str], list[Compared]] = defaultdict(list)
    for one in few:
        cells[one.key.kind, one.near].append(one)
    rows = (
        (*cell, str(len(ones)), *(_percent(_mean(ones, name)) for name in ("transfer", "own")), str(_won(ones)))
        for cell, ones in sorted(cells.items(), key=lambda item: (item[0][0], RELATIONS.index(item[0][1])))
    )
    told = (
        f"The {OWN_POINTS} own points alone were better than the best transfer in {_won(few)} of {len(few)} cases:\n\n"
    )
    head = ("kind", "relation of the best transfer", "cases", "transfer", f"{OWN_POINTS} own", "own better")
    return told + _table(head, rows)


def _step_rows(steps: Iterable[StepScore]) -> Iterator[tuple[str, ...]]:
    for one in steps:
        shares = (_percent(value) for value in (one.mean, one.median, one.bias, one.coverage))
        yield (one.gpu, one.source, one.near, one.precision, str(one.rows), *shares, f"{one.width:.1f}")


def _derived_rows(steps: Iterable[DerivedSteps]) -> Iterator[tuple[str, ...]]:
    for one in steps:
        figures = (np.abs(one.errors).mean(), one.errors.mean(), np.abs(one.sheet).mean(), one.sheet.mean())
        of = (one.gpu, one.precision, one.source, one.framework, one.network, str(one.errors.size))
        yield (*of, *(_percent(float(value)) for value in figures))


def _won(few: Iterable[Compared]) -> int:
    return sum(one.own < one.transfer for one in few)


def _mean(few: Iterable[Compared], name: str) -> float:
    return float(np.mean([getattr(one, name) for one in few]))


def _pairs(errors: Iterable[Transfer]) -> Iterator[tuple[str, ...]]:
    cells: dict[tuple[str, ...], list[FloatArray]] = defaultdict(list)
    for one in errors:
        cells[one.key.gpu, one.key.other, one.near, one.units, one.key.kind, one.key.precision].append(one.errors)
    for cell, parts in cells.items():
        signed = np.concatenate(parts)
        if signed.size:
            size = np.abs(signed)
            figures = (size.mean(), *np.quantile(size, [0.5, 0.9]), signed.mean())
            yield (*cell, str(signed.size), *(_percent(float(value)) for value in figures))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def differences(before: Transfers, now: Transfers) -> list[str]:
    """Return one sentence for each mean error that is no longer what it was, or is new, or gone."""
    old, new = (_means(one) for one in (before, now))
    gone = (f"{' '.join(key)}: only {'before' if key in old else 'now'}" for key in sorted(old.keys() ^ new.keys()))
    both = ((key, old[key], new[key]) for key in sorted(old.keys() & new.keys()))
    moved = (
        f"{' '.join(key)}: {was:.4f} before, {is_:.4f} now"
        for key, was, is_ in both
        if abs(is_ - was) > max(SAME, SAME_RELATIVE * was)
    )
    return [*gone, *moved]


def _means(known: Transfers) -> dict[tuple[str, ...], float]:
    scores: dict[tuple[str, ...], float] = {(s.relation, s.units, s.kind, s.precision): s.mean for s in known.scores}
    scores |= {("own points", s.units, s.kind, s.precision): s.own for s in known.own_points}
    return scores | {("derived on", s.units, s.kind, s.precision): s.mean for s in known.precisions}


def main(arguments: list[str] | None = None) -> int:
    """Write the scores and print their page, or check the scores; return the exit code."""
    parser = parser_of("validation.transfer", __doc__)
    parser.add_argument("--data", default=Path("data"), type=Path, help="folder with the tables (default: data)")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a score differs")
    given = parser.parse_args(arguments)
    return finished(lambda: _check(given.data) if given.check else _write(given.data))


def _check(data: Path) -> int:
    told = differences(TRANSFER.read(SCORES), found(data).known)
    sys.stderr.write("".join(f"{line}\n" for line in told))
    return 1 if told else 0


def _write(data: Path) -> None:
    of = found(data)
    write_file(SCORES, TRANSFER.dump(of.known), force=True)
    asked = asked_runs()
    sys.stdout.write(page(of, step_scores(asked), derived_steps(asked)))


if __name__ == "__main__":
    sys.exit(main())
