"""Entries of the input side: reads from storage, decoding, copies between host and device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from planner.domain.calibration import Entry
from planner.domain.inputs import DECODE, DEVICE_TO_HOST, HOST_TO_DEVICE, INPUT_COLUMNS, LOAD, LOAD_CACHED
from planner.domain.samples import Samples
from planner.fitting.entries import fit_entry
from planner.fitting.rows import merged, usable

__all__ = ["fit_input"]


class _Fit(NamedTuple):
    """How rows of a kind become an entry."""

    scope: str
    kind: str
    term: str
    least_rows: int
    notes: str = ""


COLD_NOTE = "cold for this system; what a host of virtual machines or a server of files caches is not told apart"
FITS: Mapping[str, _Fit] = {
    LOAD: _Fit("storage", LOAD, "storage.reads", 3, f"samples read in random order by one thread, {COLD_NOTE}"),
    LOAD_CACHED: _Fit("storage", LOAD_CACHED, "storage.reads", 3, "samples read again by one thread"),
    DECODE: _Fit("storage", DECODE, "storage.decode", 4, "one thread decodes, crops, resizes and normalises"),
    HOST_TO_DEVICE: _Fit("host", "copy", "host.bytes", 3),
    DEVICE_TO_HOST: _Fit("host", "copy_back", "host.bytes", 3),
}
"""Kind of rows -> its entry; every kind of INPUT_COLUMNS."""


def fit_input(
    samples: Samples, *, estimator: str = "relative-nnls", origin: str = "measured", source: str = ""
) -> tuple[tuple[Entry, ...], tuple[str, ...]]:
    """Return an entry for every kind and library of rows, and a sentence for each that has too few sizes.

    Parameters
    ----------
    samples : Samples
        Rows of other kinds than those of INPUT_COLUMNS are passed over.
    estimator : {"relative-nnls", "least-squares"}
    origin, source : str
        Stored in every entry; a row's own ``source`` goes before ``source``.
    """
    mask, _ = usable(samples)
    rows = samples.select(mask & np.isin(samples.text["kind"], list(INPUT_COLUMNS)))
    entries, missing = [], []
    for kind, library, part in _split(rows):
        fit = FITS[kind]
        if part.size < fit.least_rows:
            missing.append(f"{' '.join(filter(None, (kind, library)))}: {part.size} sizes, {fit.least_rows} needed")
            continue
        entry = fit_entry(part, (fit.scope, kind, "", "", library), fit.term, {}, estimator=estimator)
        own = "; ".join(sorted({str(name) for name in part.text["source"] if name})) or source
        entries.append(replace(entry, kind=fit.kind, origin=origin, source=own, notes=fit.notes))
    return tuple(entries), tuple(missing)


def _split(rows: Samples) -> Iterator[tuple[str, str, Samples]]:
    """Yield kind, library and their rows, sizes merged."""
    kinds, libraries = rows.text["kind"], rows.text["library"]
    for kind in INPUT_COLUMNS:
        for library in sorted(set(libraries[kinds == kind].tolist())):
            yield kind, library, merged(rows.select((kinds == kind) & (libraries == library)), kind)
