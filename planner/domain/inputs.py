"""Measured parts of the way of a sample from storage to a device: kinds of rows in samples files.

=================  ==========================================================================================
kind               one row, with its work columns
=================  ==========================================================================================
load               ``images`` samples of ``bytes`` in all, read in random order from storage that held none of them
                   in a cache
load_cached        the same, read again from the memory that the system keeps read files in
decode             ``images`` encoded images of ``bytes`` in all made ready by one thread: decoded, cropped, resized
                   and laid out as ``elements`` numbers
host_to_device     ``bytes`` copied from host memory to a device; ``library``: ``pinned`` or ``pageable`` memory
device_to_host     the other way
=================  ==========================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping

from planner.domain.arrays import frozen_map

__all__ = [
    "DECODE", "DEVICE_TO_HOST", "HOST_TO_DEVICE", "INPUT_COLUMNS", "JPEG", "LOAD", "LOAD_CACHED", "PAGEABLE", "PINNED",
]  # fmt: skip

LOAD, LOAD_CACHED = "load", "load_cached"
DECODE = "decode"
JPEG = "jpeg"
"""Encoding of a data set whose images threads decode."""
HOST_TO_DEVICE, DEVICE_TO_HOST = "host_to_device", "device_to_host"
PINNED, PAGEABLE = "pinned", "pageable"

INPUT_COLUMNS: Mapping[str, tuple[str, ...]] = frozen_map(
    dict.fromkeys((LOAD, LOAD_CACHED), ("images", "bytes"))
    | {DECODE: ("images", "bytes", "elements")}
    | dict.fromkeys((HOST_TO_DEVICE, DEVICE_TO_HOST), ("bytes",))
)
