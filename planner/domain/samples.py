"""Measurements: one row a timed call, as columns.

Column names are those of a samples file, except that ``stride`` and ``padding`` are split in
``stride_h``, ``stride_w``, ``pad_h`` and ``pad_w``. ``traffic`` and ``fixed_bytes`` stand for the file's ``passes`` x
``elements`` and the remainder of its ``bytes``. ``call`` names the call of a network's layer (see
:class:`planner.domain.network.LayerCall`), timed at ``sub_batch``; empty: a shape of its own.

Measured parts of the way of a sample from storage to a device: kinds of rows in samples files.

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

A timed step is what a framework really took, to compare with the sum of its kernels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from planner.domain.arrays import BoolArray, FloatArray, check_count, check_not_negative, check_positive, frozen_map
from planner.domain.keys import Key
from planner.domain.network import Network
from planner.domain.precision import precision_named
from planner.errors import ParameterError

TEXT_COLUMNS = (
    "kind", "direction", "precision", "device", "library", "trans_a", "trans_b", "operation", "call", "source", "group",
    "notes",
)  # fmt: skip
NUMBER_COLUMNS = (
    "m", "n", "k", "batch", "groups", "in_c", "in_h", "in_w", "out_c", "k_h", "k_w", "stride_h", "stride_w", "pad_h",
    "pad_w", "images", "elements", "rows", "traffic", "fixed_bytes", "bytes", "queries", "keys", "width", "causal",
    "ranks", "nodes", "ranks_per_node", "sub_batch", "time_s", "spread_s", "repeats",
)  # fmt: skip
FREE_CIRCUMSTANCES = frozenset({
    "budget_s", "command", "date", "design", "expected_error", "gpu_peak_memory_bytes", "gpu_power_w",
    "gpu_sm_clock_hz", "gpu_temperature_c", "gpu_throttle", "host", "host_s_per_call",
    "kernel_s_at_least", "kernels_beside_messages", "left_out", "load_average", "messages_hidden", "networks", "node",
    "notes", "reference_s", "rejected", "source",
    "steal_during_s", "steal_s", "sustained_bf16", "sustained_fp16", "sustained_fp8", "sustained_int8",
    "sustained_tf32", "warning_busy", "warning_clocks", "warning_disturbed", "warning_slower", "warning_steal",
    "warning_steps", "warning_steps_failed", "warning_throttled",
})  # fmt: skip
"""Circumstances that say where and how a run went, not what was measured; all others agree in samples of one fit."""
BESIDE, HIDDEN = "kernels_beside_messages", "messages_hidden"
"""Circumstances of links: by how much kernels take longer beside messages, and the share of these that steps hid."""
BUDGET = "budget_s"
"""Circumstance: the budget that the measuring had, with fitting and all [s]."""
COMMAND = "command"
"""Circumstance: what to type to make a calibration again from the samples that it cites."""
DISTURBED_NOTE = "measured while the machine was disturbed"
"""Note of a row."""
NETWORKS = "networks"
"""Circumstance: names of the networks whose own calls were timed, joined by "; "."""


@dataclass(frozen=True, slots=True)
class Samples:
    """k timed calls.

    Attributes
    ----------
    text : mapping of every name in TEXT_COLUMNS to ndarray of str, shape (k,); empty where not given
    number : mapping of every name in NUMBER_COLUMNS to ndarray of float, shape (k,); NaN where not given
    circumstances : mapping of str to str, what was true of all of them: host, device, library versions, threads
    """

    text: Mapping[str, NDArray[np.str_]]
    number: Mapping[str, FloatArray]
    circumstances: Mapping[str, str]

    def __post_init__(self) -> None:
        if set(self.text) != set(TEXT_COLUMNS) or set(self.number) != set(NUMBER_COLUMNS):
            raise ParameterError("samples", "complete in their columns", sorted({*self.text, *self.number}))
        for name in ("text", "number", "circumstances"):
            object.__setattr__(self, name, frozen_map(getattr(self, name)))

    @property
    def size(self) -> int:
        """Number of rows."""
        return int(self.number["time_s"].size)

    @property
    def time_s(self) -> FloatArray:
        """Measured times, shape (k,)."""
        return self.number["time_s"]

    def select(self, mask: BoolArray) -> Samples:
        """Return the rows where ``mask``, shape (k,), is true."""
        return Samples(
            {key: column[mask] for key, column in self.text.items()},
            {key: column[mask] for key, column in self.number.items()},
            self.circumstances,
        )

    @staticmethod
    def from_rows(rows: list[Mapping[str, Any]], circumstances: Mapping[str, str]) -> Samples:
        """Make samples of dictionaries; a missing column is empty or NaN."""
        return Samples(
            {key: np.array([str(row.get(key, "")) for row in rows], dtype=np.str_) for key in TEXT_COLUMNS},
            {key: np.array([row.get(key, np.nan) for row in rows], dtype=np.float64) for key in NUMBER_COLUMNS},
            circumstances,
        )

    def joined(self, other: Samples) -> Samples:
        """Return these rows, then those of ``other``; the circumstances are these."""
        return Samples(
            {key: np.concatenate([column, other.text[key]]) for key, column in self.text.items()},
            {key: np.concatenate([column, other.number[key]]) for key, column in self.number.items()},
            self.circumstances,
        )


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


STEP = "step"
"""Kind of rows of samples files that hold one: ``call`` is the network's name."""


@dataclass(frozen=True, slots=True)
class TimedStep:
    """The time of one gradient computation, forward and backward without an update: median and spread.

    ``precision``: that it computes in, of 16 bits as mixed precision.
    """

    network: Network
    sub_batch: int
    time_s: float
    spread_s: float = 0.0
    precision: str = "fp32"

    def __post_init__(self) -> None:
        check_count("sub_batch", self.sub_batch)
        check_positive("time", self.time_s, "s")
        check_not_negative("spread", self.spread_s, "s")
        precision_named(self.precision)


def number_in(text: str) -> float:
    """Return the finite number above 0 that a circumstance says; 0 where it says none."""
    try:
        number = float(text)
    except ValueError:
        return 0.0
    return number if 0 < number < math.inf else 0.0


@dataclass(frozen=True, slots=True)
class VerifiedTerm:
    """A term of a step as it was predicted and measured, with the spread of its repeats [s]."""

    name: Annotated[str, Key("forward, backward, update, or step, their sum")]
    predicted_s: Annotated[float, Key("for the device that ran")]
    measured_s: Annotated[float, Key("median of the repeats")]
    spread_s: Annotated[float, Key("scaled median absolute deviation of the repeats")]

    @property
    def ratio(self) -> float:
        """Measured over predicted."""
        return self.measured_s / self.predicted_s


@dataclass(frozen=True, slots=True)
class Verified:
    """Real steps of a plan's per-GPU part beside their prediction, on one device."""

    position: Annotated[int, Key("of the plan in its document")]
    ran: Annotated[str, Key("which part of the network ran, in words")]
    network: Annotated[str, Key("of the plan")]
    device: Annotated[str, Key("what it ran on, and is predicted for")]
    sub_batch: Annotated[int, Key("samples of a pass")]
    precision: Annotated[str, Key("that it computes in")]
    calibrations: Annotated[tuple[str, ...], Key("that predict it", absent=())]
    terms: Annotated[tuple[VerifiedTerm, ...], Key("of one pass and an update", size=(1, None))]
    not_run: Annotated[tuple[str, ...], Key("what of the plan's step did not run, in words", absent=())]
    repeats: Annotated[int, Key("steps that were timed")]
    slower: Annotated[float, Key("times slower than in quiet the machine was")]
