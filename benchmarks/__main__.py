"""Measure how much processor time answers take, beside a reference.

    python -m benchmarks                      # beside benchmarks/reference.json
    python -m benchmarks --against COMMIT     # beside that commit, measured in turn with this tree
    python -m benchmarks --check              # 1 if a figure takes more of the reference than it may

A figure is processor time over that of a fixed NumPy workload that runs right before and behind it: the median of all
rounds, each a process of its own. So machines compare, and a busy one is no slower. Progress goes to standard error.
A figure of ``reference.json`` that its commit does not have yet names the commit that it was measured on.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.figures import FIGURES, Figure
from benchmarks.measure import ROOT, Measured, compiled, full_name, measure, tree_of

__all__ = ["document_of", "main", "table_of"]

REFERENCE = Path(__file__).parent / "reference.json"
NOISE = 1.1
"""Times the share that a figure may take of its reference before ``--check`` complains."""


def main(arguments: Sequence[str] | None = None, figures: Sequence[Figure] = FIGURES) -> int:
    """Run the command and return its exit code."""
    options = _options(arguments, figures)
    chosen = [one for one in figures if not options.only or one.name in options.only]
    try:
        commit = full_name(options.against) if options.against else ""
    except ValueError as error:
        sys.stderr.write(f"benchmarks: {error}\n")
        return 2
    compiled(ROOT)
    with tree_of(commit) if commit else nullcontext() as other:
        trees = [ROOT, *([other] if other else [])]
        found = {one.name: measure(one, trees, options.rounds, _say) for one in chosen}
    reference = {"commit": commit, "figures": {}} if commit else json.loads(REFERENCE.read_text())
    document = document_of(chosen, found, reference, options.rounds)
    if options.keep:
        before = json.loads(REFERENCE.read_text())["figures"]
        kept = {name: _figures_of(measured[-1]) or before.get(name, {}) for name, measured in found.items()}
        REFERENCE.write_text(json.dumps({"commit": commit, "rounds": options.rounds, "figures": kept}, indent=2) + "\n")
    sys.stdout.write(json.dumps(document, indent=2) + "\n" if options.json else table_of(document))
    missed = [one["name"] for one in document["figures"] if one["is_met"] is False]
    if options.check and missed:
        sys.stderr.write(f"benchmarks: more than allowed: {', '.join(missed)}\n")
    return int(options.check and bool(missed))


def _options(arguments: Sequence[str] | None, figures: Sequence[Figure]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [one.name for one in figures]
    parser.add_argument("--only", action="append", choices=names, help="this figure alone; may be repeated")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="runs of each figure; default: 5")
    parser.add_argument("--against", metavar="COMMIT", help="measure this commit in turn, instead of the reference")
    parser.add_argument("--keep", action="store_true", help="write what --against measures into reference.json")
    parser.add_argument("--check", action="store_true", help="exit code 1 if a figure is larger than allowed")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of a table")
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error(f"--rounds must be at least 1, got {options.rounds}")
    if options.keep and (not options.against or options.only):
        parser.error("--keep must be given with --against and without --only")
    return options


def _say(sentence: str) -> None:
    sys.stderr.write(f"{sentence}\n")


def _figures_of(measured: Measured) -> dict[str, float]:
    both = {"ratio": measured.ratio, "peak_bytes": measured.peak_bytes}
    return {key: float(f"{value:.4g}") for key, value in both.items() if value is not None}


def document_of(
    figures: Sequence[Figure], found: dict[str, list[Measured]], reference: dict[str, Any], rounds: int
) -> dict[str, Any]:
    """Return every figure with its reference, its share of that, and whether that is allowed.

    The share of what was measured in turn is the median over the rounds' pairs.
    """
    rows = []
    for figure in figures:
        mine, *other = found[figure.name]
        known = _figures_of(other[0]) if other else reference["figures"].get(figure.name, {})
        pairs = list(zip(mine.ratios, other[0].ratios, strict=False)) if other else []
        for key, value in (("ratio", mine.ratio), *([("peak_bytes", mine.peak_bytes)] if figure.has_memory else [])):
            before = known.get(key)
            share = value / before if value and before else None
            if key == "ratio" and pairs:
                share = median(one / two for one, two in pairs)
            most = figure.most if key == "ratio" else 1.0
            rows.append({
                "name": figure.name, "what": figure.words, "key": key, "value": value, "reference": before,
                "share": share, "most": most, "is_met": None if share is None else share <= NOISE * most,
                "error": mine.error or (other[0].error if other else ""),
            })  # fmt: skip
    return {"rounds": rounds, "reference": reference["commit"], "figures": rows}


def table_of(document: dict[str, Any]) -> str:
    """Return the figures as lines of text."""
    lines = [f"{'figure':18} {'here':>10} {document['reference'][:7]:>10} {'share':>7} {'at most':>7}  what"]
    for one in document["figures"]:
        values = (_in_words(one["key"], one[which]) for which in ("value", "reference"))
        share = "-" if one["share"] is None else f"{one['share']:.3g}"
        cells = " ".join(f"{value:>10}" for value in values)
        what = one["error"] or one["what"] if one["key"] == "ratio" else "most memory held"
        lines.append(f"{one['name']:18} {cells} {share:>7} {one['most']:>7.3g}  {what}")
    return "\n".join(lines) + "\n"


def _in_words(key: str, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if key == "ratio" else f"{value / 1e6:.0f} MB"


if __name__ == "__main__":
    sys.exit(main())
