"""Validations of rows of which some count in sums alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import compress

from planner.domain.arrays import BoolArray
from planner.domain.validation import Locked, Validation
from planner.scoring.evaluate import Answer, validation_of

__all__ = ["validation_with_locked"]


def validation_with_locked(answers: Sequence[Answer], locked: BoolArray, hold_out: str | None = None) -> Validation:
    """Return what answers add up to, without anything that tells of single locked rows, networks or clusters of them.

    Parameters
    ----------
    answers : sequence of Answer, n
    locked : ndarray of bool, shape (n,)
    hold_out : str, optional
        What coefficients were refitted without, in turn.
    """
    whole = validation_of(answers, hold_out)
    if not locked.any():
        return whole
    rest = validation_of(list(compress(answers, ~locked)), hold_out)
    rows = [one.row for one in compress(answers, locked)]
    told = Locked(
        tuple(dict.fromkeys(row.source for row in rows)), len(rows), sum(row.predicted is not None for row in rows)
    )
    by = {**rest.by, "source": whole.by["source"]}
    return replace(whole, by=by, groups=rest.groups, terms=rest.terms, rows=rest.rows, locked=told)
