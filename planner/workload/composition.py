"""Kernels that a framework computes from primitives: what their calls become.

A primitive is a kernel of its own: it reads its operands from memory and writes its result there. E: elements of what
the layer gives, of softmax those of the scores; vectors of a row or a feature are small beside them, and not counted.

==========  =========================================================  ===================================  =====
kind        forward, kernel by kernel                                  backward, likewise                   moved
==========  =========================================================  ===================================  =====
gelu        x^3 2E, times .04 2E, sum 3E, times c 2E, tanh 2E,         times cdf 3E, times x 3E, half 2E,   18E,
            plus 1 2E, half 2E, times x 3E: 8                          of tanh 3E, c 2E, .04 2E, of the     26E
                                                                       power 2E + 2E + 3E, sum of three
                                                                       4E: 10
layer_norm  mean E, squared difference 2E, variance E, plus ε,         of both products 3E + 3E, shift E,   15E,
            root, times scale E, times x 3E, times mean 2E,            minus 2E, of mean 3E + E + 2E, sum   41E
            from shift 2E, sum 3E: 10                                  3E, of root 2E + E, scale 2E + E,
                                                                       root, of variance E + 2E + 2E +
                                                                       2E + 3E, of mean E + 2E, sum of
                                                                       three 4E: 21
dropout     random numbers E, compared E and a byte, x scaled 2E,      times mask 3E, scaled 2E: 2          8E,
            mask of a byte to E, product 3E: 5                                                              5E
softmax     scaled 2E, masked 2E, most E, sum E, quotient 2E: 5        product 3E, sum E, difference 2E,    8E,
                                                                       product 3E, scaled 2E: 5             11E
==========  =========================================================  ===================================  =====

As TensorFlow's graph has them: ``gelu`` and ``attention_layer`` of BERT (google-research/bert, modeling.py),
``tf.contrib.layers.layer_norm`` with ``tf.nn.moments`` and ``tf.nn.batch_normalization``, whose product of root and
scale is a whole tensor, ``tf.nn.dropout``, three kernels of ``softmax_op_gpu.cu.cc``, and the gradients of
``python/ops/*_grad.py``, but for those of constants, which the graph leaves out.

In mixed precision of 16 bits its rewrite keeps fp32 what follows a mean, a sum or a power (lists of
``grappler/optimizers/auto_mixed_precision_lists.h``): GELU and norm whole, softmax backward but for the scale. Random
numbers are fp32. Casts are not counted, nor what memory holds of tensors between primitives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from planner.domain.kernels import BACKWARD_DATA, FORWARD, KernelCalls
from planner.domain.layers.record import Layer
from planner.workload.program import Program

__all__ = ["composed_calls"]

_WIDE_BYTES = 4


class Chain(NamedTuple):
    """Primitives in place of a kernel: how many, elements that they move, those that stay fp32, and other bytes."""

    kernels: int
    moved: int
    wide: int = 0
    bytes: int = 0


CHAINS: Mapping[tuple[str, str], Chain] = {
    ("gelu", FORWARD): Chain(8, 0, 18),
    ("gelu", BACKWARD_DATA): Chain(10, 0, 26),
    ("layer_norm", FORWARD): Chain(10, 0, 15),
    ("layer_norm", BACKWARD_DATA): Chain(21, 0, 41),
    ("dropout", FORWARD): Chain(5, 6, 2, 2),
    ("dropout", BACKWARD_DATA): Chain(2, 5),
    ("softmax", FORWARD): Chain(5, 8),
    ("softmax", BACKWARD_DATA): Chain(5, 2, 9),
}
"""Kind of COMPOSED and direction -> its primitives."""


def composed_calls(
    calls: KernelCalls, of: Program, composes: tuple[str, ...], launch: str
) -> tuple[KernelCalls, KernelCalls] | None:
    """Return calls of one kind without those made of primitives, and these; None: none is.

    Every call keeps its place: what is made otherwise is made no times. Primitives are of kind ``activation``, as the
    plainest kernel that reads and writes elements. A chain is one operation, as the kernel is that it stands for. Of
    an ``eager`` program each primitive is a call, which moves the mean of its chain. Any other starts them without
    Python, and the time that calls have whatever they move was learned of operations that Python starts: there a chain
    is one call, and each further primitive a launch.

    >>> from planner import catalog
    >>> from planner.workload.lowering import lower
    >>> from planner.workload.program import program
    >>> bert = catalog.find_network("bert-base")
    >>> norms = next(one for one in lower(bert, np.array([8])) if one.kind == "layer_norm")
    >>> rest, primitives = composed_calls(norms, program(bert), ("layer_norm",), "executor")
    >>> int(norms.count.sum()), int(rest.count.sum()), int(primitives.count.sum()), int(primitives.launches.sum())
    (25, 0, 25, 225)
    """
    sites = {site.position: site.layer for site in of.sites}
    kinds = [_kind_of(calls.kind, sites[at]) for at in calls.layer.tolist()]
    chains = [CHAINS.get((kind, calls.direction)) if kind in composes else None for kind in kinds]
    if not any(chains):
        return None
    kernels, moved, wide, others = np.array([one or Chain(1, 0) for one in chains]).T
    is_chain = np.array([one is not None for one in chains])
    parts = kernels if launch == "eager" else 1
    elements = calls.work["elements"]
    work = {
        "elements": elements,
        "traffic": elements * moved / parts,
        "fixed_bytes": elements * (_WIDE_BYTES * wide + others) / parts,
    }
    operations = np.where(is_chain, calls.count, 0)
    primitives = KernelCalls(
        "activation", calls.direction, calls.layer, operations * parts, work,
        operations=operations, launches=operations * (kernels // parts - 1),
    )  # fmt: skip
    return replace(calls, count=np.where(is_chain, 0, calls.count)), primitives


def _kind_of(kind: str, layer: Layer) -> str:
    """Return the kind of COMPOSED of a layer's call, empty: none. A loss has a kernel of its own."""
    if kind in ("activation", "gelu"):
        return "gelu" if layer.kind == "activation" and layer.attributes["function"] == "gelu" else ""
    return "" if layer.kind == "loss" else kind
