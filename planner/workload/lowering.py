"""Lowering: the kernel calls of one training step, layer by layer, as the records of their kinds say.

To these come the sums of gradients that meet, and the update of the parameters: 12, 20 or 28 bytes a parameter by SGD,
with momentum, by Adam.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from planner.domain.arrays import IntArray
from planner.domain.configuration import OPTIMIZERS
from planner.domain.kernels import BACKWARD_DATA, UPDATE, KernelCalls
from planner.domain.layers import LAYER_KINDS
from planner.domain.layers.record import Call, Lowering, fixed, traffic
from planner.domain.network import Network
from planner.errors import ParameterError, UnknownNameError
from planner.workload.ledger import Ledger
from planner.workload.program import Program, program

__all__ = ["CONVOLUTIONS", "UPDATE_BYTES", "ledger_of", "lower"]

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
    backward-data, nor has anything before it. With im2col, the columns are made again for the weight gradient, as Caffe
    does, because one buffer serves all layers; a 1 x 1 convolution of stride 1 without padding needs none.

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
            ledger.add(site.position, call)
        if site.has_gradient and site.reads > 1:
            sum_work = traffic(site.output_elements, 3 * site.output_elements)
            ledger.add(site.position, Call("add", BACKWARD_DATA, sum_work, fixed(site.reads - 1)))
        if site.parameters and optimizer != "none":
            count = site.parameters
            work = (fixed(count), fixed(0), fixed(UPDATE_BYTES[optimizer] * count))
            ledger.add(site.position, Call("update", UPDATE, work))
    return ledger
