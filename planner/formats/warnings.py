"""Warnings in documents: each sentence once, with the positions of what it is about unless it is about all of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from planner.domain.prediction import PlanWarning
from planner.formats.fields import Field, ListOf, Table
from planner.formats.values import Text, Whole

__all__ = ["warning_keys", "warning_table", "warnings_of"]

Lists = Mapping[str, Mapping[int, Sequence[PlanWarning]]]
"""Key of a list -> position in it -> warnings of what stands there."""


def warning_table(**lists: str) -> Table[dict[str, Any]]:
    """Return the table of a warning with a key for each list of positions, of that description."""
    subject = Field("subject", Text(), "what it is about", "")
    of = (subject, *(Field(key, ListOf(Whole()), doc, None) for key, doc in lists.items()))
    again = ListOf(Table(of, dict[str, Any], title="_".join(("said_again", *lists))), least=1)
    own = (Field("code", Text(), "for programs"), Field("message", Text(), "for people"))
    also = Field("also", again, "other subjects of the same sentence", None)
    return Table((*own, *of, also), dict[str, Any], title="_".join(("warning", *lists)))


def warning_keys(first: Iterable[PlanWarning], lists: Lists) -> list[dict[str, Any]]:
    """Return the keys of every warning once: the ``first`` ones, then those that stand in lists alone, in order."""
    of_lists = (warning for rows in lists.values() for warnings in rows.values() for warning in warnings)
    by_sentence: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for one in dict.fromkeys((*first, *of_lists)):
        by_sentence.setdefault((one.code, one.message), []).append({"subject": one.subject, **_positions(one, lists)})
    return [
        {"code": code, "message": message, **own, "also": also or None}
        for (code, message), (own, *also) in by_sentence.items()
    ]


def _positions(warning: PlanWarning, lists: Lists) -> dict[str, list[int] | None]:
    """Return the positions of a warning in each list; None: all of them."""
    positions_by_list = {
        key: [at for at, warnings in rows.items() if warning in warnings] for key, rows in lists.items()
    }
    return {
        key: positions if len(positions) < len(lists[key]) else None for key, positions in positions_by_list.items()
    }


def warnings_of(rows: Iterable[Mapping[str, Any]], key: str = "", position: int = 0) -> tuple[PlanWarning, ...]:
    """Return the warnings of rows; with ``key`` those of what stands at a position of its list."""
    return tuple(
        PlanWarning(row["code"], one["subject"], row["message"])
        for row in rows
        for one in (row, *(row["also"] or ()))
        if not key or one[key] is None or position in one[key]
    )
