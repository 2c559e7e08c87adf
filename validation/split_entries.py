"""Entries of what plans that split transformers showed: overheads of frameworks, multiples of links by their kinds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planner.domain.calibration import END_TO_END, Entry
from planner.fitting.observed import HALF_PRECISIONS
from planner.fitting.split_steps import SplitFit
from planner.sources.links import multiples_of
from validation.fitted_rows import GENERIC, POOLED_PRECISIONS, Cell, Rows, few, stated

__all__ = ["SplitEntries"]


class SplitEntries:
    """Entries of the effects that runs of split plans ask for."""

    def __init__(self, fitted: SplitFit, rows: Sequence[Rows]) -> None:
        self.fitted, self.rows = fitted, [one for one in rows if one.asked.split]

    @property
    def cells(self) -> list[Cell]:
        """Framework, accelerator, class of precisions, measured or specified kernels, sorted."""
        return sorted({cell for one in self.rows for cell in one.split_cells})

    @property
    def accelerators(self) -> list[str]:
        """Those that runs show, sorted."""
        return sorted({cell[1] for cell in self.cells})

    def entries(self, accelerator: str) -> list[Entry]:
        """Return the entries of an accelerator: one for every precision of the class that it has."""
        found = []
        for cell in self.cells:
            if cell[1] == accelerator:
                properties = dict(zip(("framework", "accelerator", "precision", "kernels"), cell, strict=True))
                mine = [one for one in self.rows if cell in one.split_cells]
                properties["chip"] = mine[0].asked.problem.cluster.node.accelerator.chip
                has = mine[0].asked.problem.cluster.node.accelerator.peak_flop_per_s
                for precision in sorted(HALF_PRECISIONS & set(has)) if cell[2] == "half" else (cell[2],):
                    entry = self.fitted.overheads(properties, precision, cell[0])
                    found.append(stated(entry, mine, [one.by_network for one in mine]))
        return found

    def pooled(self) -> Iterator[Entry]:
        """Yield what is known of a framework, or of any, on accelerators that no run shows."""
        for framework in (*sorted({cell[0] for cell in self.cells}), GENERIC):
            for kernels in sorted({cell[3] for cell in self.cells}):
                mine = [
                    one
                    for one in self.rows
                    if any(cell[3] == kernels and framework in (cell[0], GENERIC) for cell in one.split_cells)
                ]
                for precision, precision_class in POOLED_PRECISIONS.items() if mine else ():
                    named = {} if framework == GENERIC else {"framework": framework}
                    properties = named | {"precision": precision_class, "kernels": kernels}
                    yield stated(
                        self.fitted.overheads(properties, precision, framework), mine, [one.by_gpu for one in mine]
                    )

    def multiples(self) -> Iterator[Entry]:
        """Yield by what links of every two kinds are slower than specified, or inside nodes than measured there."""
        by_kinds: dict[str, dict[str, list[Rows]]] = {}
        for one in self.rows:
            cluster = one.asked.problem.cluster
            by_kinds.setdefault(multiples_of(cluster), {}).setdefault(cluster.name, []).append(one)
        for library, clusters in sorted(by_kinds.items()):
            each = [self.fitted.coefficients({"cluster": name}) for name in sorted(clusters)]
            mine = [one for some in clusters.values() for one in some]
            scales = {
                name: few(sum(one[link] for one in each) / len(each))
                for name, link in (("bytes_inside", "intra_node"), ("bytes_between", "inter_node"))
            }
            yield Entry(
                "collectives", "all_reduce", "", "", library, "collective.alpha_beta", {},
                {"messages_inside": 1.0, "messages_between": 1.0, **scales},
                fixed=("messages_inside", "messages_between"),
                samples=sum(one.measured_s.size for some in mine for one in some.asked.split),
                estimator=END_TO_END,
                origin="published",
                source=", ".join(sorted({one.asked.runs[0].source for one in mine})),
                notes="not times: multiples of the time a byte, inside nodes of what was measured on such where it was",
            )  # fmt: skip
