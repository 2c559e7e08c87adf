"""Lowering: the kernel calls of one training step, layer by layer, as the records of their kinds say.

To these come the sums of gradients that meet, and the update of the parameters: 12, 20 or 28 bytes a parameter by SGD,
with momentum, by Adam.

A ledger of calls is written layer by layer, and read as arrays over sub-batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.domain.arrays import IntArray
from planner.domain.configuration import OPTIMIZERS
from planner.domain.kernels import (
    BACKWARD_DATA,
    BACKWARD_WEIGHT,
    DIRECTIONS,
    FORWARD,
    KINDS,
    UPDATE,
    WORK_COLUMNS,
    KernelCalls,
)
from planner.domain.layers import LAYER_KINDS
from planner.domain.layers.record import Amount, Call, Lowering, fixed, traffic
from planner.domain.network import Network
from planner.errors import ParameterError, UnknownNameError
from planner.workload.program import Program, program

__all__ = ["CONVOLUTIONS", "UPDATE_BYTES", "Ledger", "ledger_of", "lower"]

LARGEST_WHOLE = 2.0**62
"""Amounts above this are not whole numbers of 64 bits, which would wrap, but floating-point ones."""


class _Column(NamedTuple):
    """Amounts base + slope·n of k layers, shape (k,) each, the most of either, and whether any slope is not 0."""

    base: IntArray
    slope: IntArray
    most_base: float
    most_slope: float
    varies: bool

    def of(self, sub_batch: IntArray, most: float) -> IntArray:
        """Return the amounts at sub-batches (s,) of at most so many samples: (s, k), or (1, k) where all are alike."""
        is_whole = self.most_base + self.most_slope * most <= LARGEST_WHOLE
        base, slope = (one if is_whole else one.astype(np.float64) for one in (self.base, self.slope))
        amounts: NDArray[Any] = base + slope * sub_batch[:, None] if self.varies else base[None, :]
        return amounts


class Ledger:
    """Collects the calls of a program's layers; kinds and directions in the order of KINDS and DIRECTIONS."""

    def __init__(self, of: Program) -> None:
        self._program = of
        self._rows: dict[tuple[str, str], list[tuple[int, list[Amount]]]] = {}

    def add(self, position: int, call: Call) -> None:
        """Note the calls of one layer like that at ``position``."""
        self._rows.setdefault((call.kind, call.direction), []).append((position, [call.count, *call.work]))

    def rows(self) -> Iterator[tuple[str, str, IntArray, IntArray]]:
        """Yield kind, direction, positions of layers, shape (k,), and amounts, (a, b) each, shape (k, 1 + columns, 2).

        The first amount is the count of all layers that are like the one at a position.
        """
        for kind, direction in ((kind, direction) for kind in KINDS for direction in DIRECTIONS):
            if rows := self._rows.get((kind, direction)):
                layer = np.array([position for position, _ in rows], dtype=np.int64)
                amounts = np.array([amounts for _, amounts in rows], dtype=np.int64)
                amounts[:, 0] *= self._program.layers[self._program.site[layer], None]
                yield kind, direction, layer, amounts

    @cached_property
    def _columns(self) -> list[tuple[str, str, IntArray, list[_Column]]]:
        """The rows by column: the ledger is written before it is read."""
        return [
            (kind, direction, layer, [_column(*amounts[:, at].T) for at in range(amounts.shape[1])])
            for kind, direction, layer, amounts in self.rows()
        ]

    def calls(self, sub_batch: IntArray) -> tuple[KernelCalls, ...]:
        """Return the calls for sub-batches of shape (s,)."""
        return tuple(_record(*row, sub_batch) for row in self._columns)


def _column(base: IntArray, slope: IntArray) -> _Column:
    most = float(base.max()), float(slope.max())
    return _Column(np.ascontiguousarray(base), np.ascontiguousarray(slope), *most, bool(slope.any()))


def _record(kind: str, direction: str, layer: IntArray, columns: list[_Column], sub_batch: IntArray) -> KernelCalls:
    most = float(sub_batch.max(initial=0))
    count, *work = (one.of(sub_batch, most) for one in columns)
    of_all = count if columns[0].varies else count[0]
    return KernelCalls(kind, direction, layer, of_all, dict(zip(WORK_COLUMNS[kind], work, strict=True)))


CONVOLUTIONS = ("direct", "im2col")
"""How a convolution is done: by one kernel of a library, or by im2col, matrix products and col2im."""

UPDATE_BYTES: Mapping[str, int] = {
    "none": 0,
    "sgd": 12,
    "sgd-momentum": 20,
    "nesterov": 20,
    "adagrad": 20,
    "rmsprop": 20,
    "adam": 28,
    "adam-8bit": 16,
}
"""Bytes that an update moves per parameter, the same in mixed precision: there the fp32 master is read and written (8),
the 2-byte gradient read and the 2-byte weight written (4), where fp32 reads and writes the weight (8) and reads the
gradient (4). Each fp32 moment adds 8; adam-8bit reads and writes two moments of one byte, adding 4."""


def lower(
    network: Network,
    sub_batch: IntArray,
    *,
    convolution: str = "direct",
    per_image: bool = False,
    optimizer: str = "sgd-momentum",
    input_gradient: bool = False,
    merged: bool = True,
) -> tuple[KernelCalls, ...]:
    """Return the kernel calls of one step, those of equal layers once: forward, backward, update.

    Nothing is passed back to the network's input, unless ``input_gradient`` asks for it: the first trained layer has no
    backward-data, nor has anything before it; frozen layers have no backward-weight and no update. With im2col, the
    columns are made again for the weight gradient, as Caffe does, because one buffer serves all layers; a 1 x 1
    convolution of stride 1 without padding needs none.

    Parameters
    ----------
    sub_batch : ndarray of int, shape (s,), n [samples], >= 1
    convolution : one of CONVOLUTIONS
    per_image : with im2col, whether images go through it one at a time; then each kernel is called n times as often
    optimizer : one of OPTIMIZERS; ``none``: no update calls
    input_gradient : whether the framework computes the gradient of the input too
    merged : whether equal layers stand once; else every layer makes its own calls

    Returns
    -------
    tuple of KernelCalls : one a kind and direction, in the order of KINDS and DIRECTIONS; ``count`` is of all equal
        layers. A column that does not depend on the sub-batch has shape (1, k), the others (s, k); ``count`` has shape
        (k,), or (s, k) where it depends on it.

    ParameterError, UnknownNameError: an argument breaks its rule, or a layer cannot read what it is given.
    """
    if sub_batch.ndim != 1 or not (sub_batch >= 1).all():
        raise ParameterError("sub_batch", "a vector of whole numbers, at least 1", sub_batch)
    of = program(network, input_gradient=input_gradient, merged=merged)
    return ledger_of(of, convolution, per_image=per_image, optimizer=optimizer).calls(sub_batch)


@lru_cache(maxsize=32)
def ledger_of(
    of: Program, convolution: str = "direct", *, per_image: bool = False, optimizer: str = "sgd-momentum"
) -> Ledger:
    """Return the calls of a program whatever the sub-batch; see :func:`lower`."""
    if convolution not in CONVOLUTIONS:
        raise UnknownNameError("convolution", convolution, CONVOLUTIONS)
    if optimizer not in OPTIMIZERS:
        raise UnknownNameError("optimizer", optimizer, OPTIMIZERS)
    ledger, lowering = Ledger(of), Lowering(convolution == "im2col", per_image)
    for site in of.sites:
        for call in LAYER_KINDS[site.layer.kind].calls(site, lowering):
            is_left_out = not site.has_gradient or (call.direction == BACKWARD_WEIGHT and site.layer.is_frozen)
            if call.direction == FORWARD or not is_left_out:
                ledger.add(site.position, call)
        if site.has_gradient and site.reads > 1:
            sum_work = traffic(site.output_elements, 3 * site.output_elements)
            ledger.add(site.position, Call("add", BACKWARD_DATA, sum_work, fixed(site.reads - 1)))
        if site.trained and optimizer != "none":
            count = site.trained
            work = (fixed(count), fixed(0), fixed(UPDATE_BYTES[optimizer] * count))
            ledger.add(site.position, Call("update", UPDATE, work))
    return ledger
