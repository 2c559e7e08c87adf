"""What the step model leaves over, by what a run ran with: program, GPU and cluster.

Nothing is fitted to a name, so what the rows of one have in common and no other has is left in their errors. A small
remainder is noise, which intervals cover; one beyond LARGEST is a term that the model lacks, and ``effects.toml`` names
it (a test sees to that).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from planner.domain.runs import ScoredRow
from validation.accuracy_answers import Facts
from validation.tables import markdown_table

__all__ = ["LARGEST", "effects_of", "effects_page"]

LARGEST = 0.15
"""Ratio of predicted to measured time, less 1, up to which what is left of a program, GPU or cluster is noise."""
FEWEST_NETWORKS = 3
"""Whose means are averaged, each once: a GPU that ran one network says nothing about the GPU."""
SURE = 2.0
"""Standard errors by which an effect must differ from none."""


def effects_of(rows: Sequence[ScoredRow], facts: Sequence[Facts]) -> list[dict[str, Any]]:
    """Return what is left over of each program, GPU and cluster of three networks or more, the largest first.

    Parameters
    ----------
    rows : n rows, predicted without their network
    facts : n, of the same rows

    Returns
    -------
    ``of`` (program, gpu or cluster), ``name``, ``ratio``: geometric mean of predicted over measured time, each network
    once; ``se``: its standard error as a share; ``networks``, ``rows``; ``is_missing``: beyond LARGEST and SURE.
    """
    found: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row, fact in zip(rows, facts, strict=True):
        if row.in_sample or row.error is None:
            continue
        excess = np.log1p(row.error) * (-1 if row.metric == "samples_per_s" else 1)
        for key in (("program", fact.program), ("gpu", row.gpu), ("cluster", row.cluster)):
            found[key][row.network].append(float(excess))
    effects = [
        _effect(*key, by_network) for key, by_network in found.items() if len(by_network) >= FEWEST_NETWORKS and key[1]
    ]
    return sorted(effects, key=lambda one: (-abs(np.log(one["ratio"])), one["of"], one["name"]))


def _effect(of: str, name: str, by_network: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    means = np.array([np.mean(some) for some in by_network.values()])
    error = float(means.std(ddof=1) / np.sqrt(means.size))
    size = abs(float(means.mean()))
    return {
        "of": of, "name": name, "ratio": float(np.exp(means.mean())), "se": error, "networks": len(means),
        "rows": sum(map(len, by_network.values())),
        "is_missing": size > np.log1p(LARGEST) and size > SURE * error,
    }  # fmt: skip


def effects_page(effects: Sequence[Mapping[str, Any]], causes: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the section of the page: those that are terms the model lacks, with their cause."""
    yield "## What is left of a program, a GPU or a cluster\n"
    missing = [one for one in effects if one["is_missing"]]
    yield (
        f"No coefficient belongs to a name. Of {len(effects)} programs, GPUs and clusters that ran {FEWEST_NETWORKS} "
        f"networks or more, the predicted time is off by more than {LARGEST:.0%}, and by {SURE:.0f} standard errors, "
        f"for {len(missing)}: there the model lacks a term. Each network counts once, and is left out of the fit.\n"
    )
    because = {(one["of"], one["name"]): one["because"] for one in causes}
    yield markdown_table(
        ("of", "name", "predicted / measured time", "networks", "rows", "missing term"),
        (
            (
                one["of"], f"`{one['name']}`", f"{one['ratio']:.2f} ± {one['ratio'] * one['se']:.2f}",
                str(one["networks"]), f"{one['rows']:,}", because.get((one["of"], one["name"]), "not known"),
            )
            for one in missing
        ),
    )  # fmt: skip
