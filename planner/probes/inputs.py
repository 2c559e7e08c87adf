"""Everything about the way of samples to a device: reads from storage, decoding, copies; within a share of a budget."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from planner.domain.samples import Samples
from planner.probes.copies import measure_copies
from planner.probes.images import measure_images
from planner.probes.storage import measure_storage

__all__ = ["INPUT_SHARE", "measure_input"]

INPUT_SHARE = 0.06
"""Of the budget of a calibration."""
MOST_INPUT_S = 6.0
"""More time changes no mean."""
IMAGES_SHARE = 0.35
COPIES_SHARE = 0.15
"""Of the time, where there is a device to copy to."""


def measure_input(
    folder: Path,
    for_s: float,
    accelerator: str,
    *,
    device: str = "cpu",
    clock: Callable[[], float] = time.perf_counter,
) -> Samples:
    """Return the rows of the input side, with circumstances; what was not measured is said in ``warning_...`` ones.

    Parameters
    ----------
    folder : Path
        A file stands on its disk for the moment.
    for_s : float
        Wall time to spend [s]; more than 6 s are not taken.
    accelerator : str
        Name of the device, of the rows.
    device : str
        As PyTorch names it; to ``cpu`` nothing is copied.
    clock : callable
    """
    for_s = min(for_s, MOST_INPUT_S)
    until_s = clock() + for_s
    copies = () if device == "cpu" else measure_copies(device, COPIES_SHARE * for_s, clock=clock)
    images = measure_images(IMAGES_SHARE * for_s, clock=clock)
    storage = measure_storage(folder, until_s - clock(), clock=clock)
    warnings = {"warning_input_decode": images.warning, "warning_input_storage": storage.warning}
    rows: list[Mapping[str, Any]] = [
        dict(row) | {"device": accelerator} for row in (*storage.rows, *images.rows, *copies)
    ]
    sentences = {key: sentence for key, sentence in warnings.items() if sentence}
    return Samples.from_rows(rows, {**storage.circumstances, **images.circumstances, **sentences})
