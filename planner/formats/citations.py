"""Citations inside answers: where the calibrations come from that they rest on, those of one source together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from planner.domain.citation import Citation
from planner.formats.fields import Field, ListOf, Table
from planner.formats.values import Text

__all__ = ["CITATIONS", "citation_keys", "citations_of"]

_CITATION = Table(
    (
        Field("names", ListOf(Text(), least=1), "names of calibrations"),
        Field("origin", Text(), "measured, published, ..."),
        Field("source", Text(), "where it comes from", ""),
        Field("date", Text(), "ISO date of that", ""),
    ),
    dict[str, Any],
    title="citation",
)
CITATIONS = Field("citations", ListOf(_CITATION), "of the calibrations that the answer rests on", ())


def citation_keys(citations: Sequence[Citation]) -> tuple[dict[str, Any], ...]:
    """Return the keys of citations."""
    names: dict[Citation, list[str]] = {}
    for one in citations:
        names.setdefault(replace(one, name=""), []).append(one.name)
    return tuple({**asdict(one), "names": of_one} for one, of_one in names.items())


def citations_of(keys: Iterable[Mapping[str, Any]]) -> tuple[Citation, ...]:
    """Return what the keys say."""
    return tuple(Citation(name, one["origin"], one["source"], one["date"]) for one in keys for name in one["names"])
