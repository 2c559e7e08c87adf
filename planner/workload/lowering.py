"""Lowering: the kernel calls of one training step, layer by layer.

n: sub-batch [samples]; c_h x c_w: kernel; m_in, m: channels in and out; g: groups; q: output positions, height x
width; E: elements of a layer's output in the sub-batch. Traffic counts every tensor once a kernel, none kept between
kernels; a residual sum passes its gradient on untouched.

=============  =============================  ==================================
kind           elements moved forward         elements moved backward
=============  =============================  ==================================
bias           2E                             E (a reduction)
activation     2E                             3E
max_pool       in + E, 4-byte index of E      the same
average_pool   in + E                         the same
upsample       in + E                         the same
batch_norm     3E (two reads, one write)      5E
layer_norm     2E                             5E
lrn            3E                             5E
dropout        2E, 1-byte mask of E           the same
add            3E for two inputs              0; 3E for every gradient that meets another
concat         2E                             2E
softmax        3E of a loss                   2E
update         -                              12, 20, 28 bytes a parameter: SGD, with momentum, Adam
=============  =============================  ==================================

Sources: Chetlur et al. 2014, arXiv:1410.0759 (convolution as matrix products); Oyama et al., SPRINT slides, 2016
(im2col as a kernel whose work is the elements of the column matrix). Embeddings and attention are lowered in
:mod:`planner.workload.sequences`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from planner.domain.arrays import IntArray
from planner.domain.configuration import OPTIMIZERS
from planner.domain.kernels import BACKWARD_DATA, BACKWARD_WEIGHT, FORWARD, UPDATE, KernelCalls
from planner.domain.network import Network
from planner.errors import ParameterError, UnknownNameError
from planner.workload.ledger import Ledger, fixed, per_sample, traffic
from planner.workload.program import Program, Site, program
from planner.workload.sequences import lower_attention, lower_embedding, lower_first_position, lower_tied_gradient

__all__ = ["CONVOLUTIONS", "UPDATE_BYTES", "ledger_of", "lower", "needs_columns"]

IMAGE_AXES = 3
"""Channels, height, width: a loss over an image sums over the channels of each pixel, any other over the last axis."""
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


@dataclass(frozen=True, slots=True)
class _Options:
    im2col: bool
    per_image: bool
    optimizer: str


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
    network : Network
    sub_batch : ndarray of int, shape (s,), n [samples], >= 1
    convolution : one of CONVOLUTIONS
    per_image : bool
        With im2col, whether images go through it one at a time; then each kernel is called n times as often.
    optimizer : one of OPTIMIZERS
        ``none``: no update calls.
    input_gradient : bool
        Whether the framework computes the gradient of the input too.
    merged : bool
        Whether equal layers stand once; else every layer makes its own calls.

    Returns
    -------
    tuple of KernelCalls
        One a kind and direction, in the order of KINDS and DIRECTIONS; ``count`` is of all equal layers. A column that
        does not depend on the sub-batch has shape (1, k), the others (s, k); ``count`` has shape (k,), or (s, k) where
        it depends on it.

    Raises
    ------
    ParameterError, UnknownNameError
        An argument breaks its rule, or a layer cannot read what it is given.
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
    options = _Options(convolution == "im2col", per_image, optimizer)
    ledger = Ledger(of)
    for site in of.sites:
        _LOWERINGS[site.layer.kind](ledger, site, options)
        _meeting_gradients(ledger, site)
        if site.parameters and optimizer != "none":
            count = site.parameters
            ledger.add("update", UPDATE, site.position, fixed(count), fixed(0), fixed(UPDATE_BYTES[optimizer] * count))
    return ledger


def needs_columns(site: Site) -> bool:
    """Tell whether a layer needs im2col: a 1 x 1 convolution of stride 1 without padding has its columns as input."""
    layer = site.layer
    plain = layer.pair("kernel") == layer.pair("stride") == (1, 1) and layer.pair("padding") == (0, 0)
    return layer.kind == "convolution" and not plain


def _convolution(ledger: Ledger, site: Site, options: _Options) -> None:
    if options.im2col:
        _convolution_im2col(ledger, site, per_image=options.per_image)
    else:
        _convolution_direct(ledger, site)
    _bias(ledger, site)


def _convolution_direct(ledger: Ledger, site: Site) -> None:
    layer = site.layer
    geometry = (
        *site.inputs[0],
        layer.integer("channels"),
        *layer.pair("kernel"),
        *layer.pair("stride"),
        *layer.pair("padding"),
        layer.integer("groups"),
    )
    work = (per_sample(1), *(fixed(size) for size in geometry))
    for direction in (FORWARD, *_backward_directions(site)):
        ledger.add("convolution", direction, site.position, *work)


def _convolution_im2col(ledger: Ledger, site: Site, *, per_image: bool) -> None:
    """Forward (m/g x c²m_in/g)·(c²m_in/g x qn), backward-data c²m_in/g x qn, backward-weight m/g x c²m_in/g; g each."""
    groups, kernel = site.layer.integer("groups"), prod(site.layer.pair("kernel"))
    positions, channels_in = prod(site.output[1:]), site.inputs[0][0]
    scaled, calls = (fixed, per_sample) if per_image else (per_sample, fixed)
    outer, inner, batched = fixed(site.output[0] // groups), fixed(kernel * channels_in // groups), scaled(positions)
    products = {
        FORWARD: (outer, batched, inner),
        BACKWARD_DATA: (inner, batched, outer),
        BACKWARD_WEIGHT: (outer, inner, batched),
    }
    columns = positions * kernel * channels_in
    work = (scaled(columns), scaled(site.input_elements + columns), fixed(0))
    for direction in (FORWARD, *_backward_directions(site)):
        ledger.add("gemm", direction, site.position, *products[direction], fixed(1), count=calls(groups))
        if needs_columns(site):
            kind = "col2im" if direction == BACKWARD_DATA else "im2col"
            ledger.add(kind, direction, site.position, *work, count=calls(1))


def _linear(ledger: Ledger, site: Site, _options: _Options) -> None:
    """Forward (m x m_in)·(m_in x n), backward-data m_in x n, backward-weight m x m_in; a sequence has n·positions."""
    outer, inner = fixed(site.output[-1]), fixed(site.inputs[0][-1])
    batched = per_sample(prod(site.output[:-1]))
    products = {
        FORWARD: (outer, batched, inner),
        BACKWARD_DATA: (inner, batched, outer),
        BACKWARD_WEIGHT: (outer, inner, batched),
    }
    for direction in (FORWARD, *_backward_directions(site)):
        ledger.add("gemm", direction, site.position, *products[direction], fixed(1))
    if site.layer.attributes["tied"]:
        lower_tied_gradient(ledger, site)
    _bias(ledger, site)


def _backward_directions(site: Site) -> tuple[str, ...]:
    return (BACKWARD_DATA, BACKWARD_WEIGHT) if site.input_gradients[0] else (BACKWARD_WEIGHT,)


def _bias(ledger: Ledger, site: Site) -> None:
    if site.layer.attributes["bias"]:
        elements = site.output_elements
        ledger.add("bias", FORWARD, site.position, *traffic(elements, 2 * elements))
        ledger.add("bias", BACKWARD_WEIGHT, site.position, *traffic(elements, elements))


def _pass_over(kind: str, forward: int, backward: int, mask_bytes: int = 0) -> Callable[[Ledger, Site, _Options], None]:
    """Return the lowering of a kernel that goes over E elements, moving so many times E, and a mask."""

    def lowering(ledger: Ledger, site: Site, _options: _Options) -> None:
        elements = site.output_elements
        ledger.add(kind, FORWARD, site.position, *traffic(elements, forward * elements, mask_bytes * elements))
        if site.has_gradient:
            work = traffic(elements, backward * elements, mask_bytes * elements)
            ledger.add(kind, BACKWARD_DATA, site.position, *work)

    return lowering


def _pool(ledger: Ledger, site: Site, _options: _Options) -> None:
    """Pooling counts as many elements as it reads: its work follows the larger side."""
    of_maximum = site.layer.kind == "pool" and site.layer.attributes["mode"] == "max"
    kind = "max_pool" if of_maximum else "average_pool"
    index_bytes = 4 * site.output_elements if of_maximum else 0
    work = traffic(site.input_elements, site.input_elements + site.output_elements, index_bytes)
    ledger.add(kind, FORWARD, site.position, *work)
    if site.has_gradient:
        ledger.add(kind, BACKWARD_DATA, site.position, *work)


def _upsample(ledger: Ledger, site: Site, _options: _Options) -> None:
    work = traffic(site.output_elements, site.input_elements + site.output_elements)
    ledger.add("upsample", FORWARD, site.position, *work)
    if site.has_gradient:
        ledger.add("upsample", BACKWARD_DATA, site.position, *work)


def _add(ledger: Ledger, site: Site, _options: _Options) -> None:
    elements, sums = site.output_elements, len(site.inputs) - 1
    ledger.add("add", FORWARD, site.position, *traffic(elements, 3 * elements), count=fixed(sums))


def _concat(ledger: Ledger, site: Site, _options: _Options) -> None:
    ledger.add("concat", FORWARD, site.position, *traffic(site.output_elements, 2 * site.output_elements))
    passed = sum(prod(shape) for shape, flows in zip(site.inputs, site.input_gradients, strict=True) if flows)
    if passed:
        ledger.add("concat", BACKWARD_DATA, site.position, *traffic(passed, 2 * passed))


def _loss(ledger: Ledger, site: Site, _options: _Options) -> None:
    elements = site.input_elements
    shape = site.inputs[0]
    rows = per_sample(elements // (shape[0] if len(shape) == IMAGE_AXES else shape[-1]))
    ledger.add("softmax", FORWARD, site.position, *traffic(elements, 3 * elements), rows)
    if site.has_gradient:
        ledger.add("softmax", BACKWARD_DATA, site.position, *traffic(elements, 2 * elements), rows)


def _layer_norm(ledger: Ledger, site: Site, _options: _Options) -> None:
    elements = site.output_elements
    rows = per_sample(elements // site.output[-1])
    ledger.add("layer_norm", FORWARD, site.position, *traffic(elements, 2 * elements), rows)
    if site.has_gradient:
        ledger.add("layer_norm", BACKWARD_DATA, site.position, *traffic(elements, 5 * elements), rows)


def _sequence(lowering: Callable[[Ledger, Site], None]) -> Callable[[Ledger, Site, _Options], None]:
    """Return a lowering that no option changes."""
    return lambda ledger, site, _options: lowering(ledger, site)


def _flatten(_ledger: Ledger, _site: Site, _options: _Options) -> None:
    """Flattening gives another name to the same memory: no kernel."""


def _meeting_gradients(ledger: Ledger, site: Site) -> None:
    """Where an output is read several times, the gradients that come back are summed."""
    if site.has_gradient and site.reads > 1:
        work = traffic(site.output_elements, 3 * site.output_elements)
        ledger.add("add", BACKWARD_DATA, site.position, *work, count=fixed(site.reads - 1))


_LOWERINGS: Mapping[str, Callable[[Ledger, Site, _Options], None]] = {
    "convolution": _convolution,
    "linear": _linear,
    "activation": _pass_over("activation", 2, 3),
    "batch_norm": _pass_over("batch_norm", 3, 5),
    "layer_norm": _layer_norm,
    "embedding": _sequence(lower_embedding),
    "attention": _sequence(lower_attention),
    "first_position": _sequence(lower_first_position),
    "lrn": _pass_over("lrn", 3, 5),
    "dropout": _pass_over("dropout", 2, 2, mask_bytes=1),
    "pool": _pool,
    "global_pool": _pool,
    "upsample": _upsample,
    "add": _add,
    "concat": _concat,
    "flatten": _flatten,
    "loss": _loss,
}
