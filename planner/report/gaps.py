"""What to measure next, for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planner.domain.gap import Gap
from planner.report.blocks import Block, Line, Table, heading

__all__ = ["gaps_view"]

MOST_GAPS = 8
"""Kernels that are listed."""
REASON_WORDS = {"missing": "not measured", "outside": "outside the fit", "poor": "poor fit"}
"""Reason in words; any other says nothing more, and where none does there is no column for it."""


def gaps_view(gaps: Sequence[Gap], command: str) -> Iterator[Block]:
    """Yield the kernels whose expected error costs steps of networks most, and the command that measures them.

    Nothing without any.
    """
    if not gaps:
        return
    yield heading("What to measure next")
    columns = ["kernels", "preci-\nsion", "in a step of", "share", "off by", "because"]
    rows: list[tuple[str, ...]] = [
        (
            f"{gap.kind} {gap.direction}".strip().replace("_", " "),
            gap.precision,
            gap.network,
            f"{gap.share:.0%}",
            f"{gap.error:.0%}",
            ", ".join(filter(None, (REASON_WORDS.get(gap.reason, ""), gap.detail))),
        )
        for gap in gaps[:MOST_GAPS]
    ]
    if not any(row[-1] for row in rows):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    yield Table(columns, rows, right=("share", "off by"))
    more = f" ({len(gaps) - MOST_GAPS} more are not listed)" if gaps[MOST_GAPS:] else ""
    yield Line(f"Share of the kernel time times expected error decides the order{more}. All of them are measured by")
    yield Line(command, indent=2, whole=True)
