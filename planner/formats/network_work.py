"""A network with what it computes, as a document (JSON): the keys of its file, figures a layer, and totals.

History, newest first
---------------------
1 : first version.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from planner.domain.kernels import WorkTotals
from planner.domain.network import Network
from planner.formats.fields import Field, ListOf, Table
from planner.formats.kinds import Kind
from planner.formats.network import FIELDS_BUT_LAYERS, LAYER_FIELDS, NETWORK
from planner.formats.values import Whole

__all__ = ["NETWORK_WORK", "network_work_document"]

_COUNT = Whole(least=0, most=10**18)
_FIGURES = (
    Field("parameters", _COUNT, "trained weights"),
    Field("forward_flop", _COUNT, "of products, forward, a sample: two a multiply-add"),
    Field("training_flop", _COUNT, "of products, forward and backward, a sample"),
)
_LAYER = Table(
    (*LAYER_FIELDS, Field("output", ListOf(Whole()), "shape of its output of one sample"), *_FIGURES), dict[str, Any]
)
_TOTALS = Table(
    (
        *_FIGURES,
        Field("forward_multiply_adds", _COUNT, "of products, forward, a sample"),
        Field("kernel_calls", _COUNT, "kernel calls of a step"),
    ),
    dict[str, Any],
)
NETWORK_WORK = Kind(
    "network-work",
    1,
    "json",
    Table(
        (
            *FIELDS_BUT_LAYERS,
            Field("layers", ListOf(_LAYER, least=1), "layers, each behind those it reads"),
            Field("totals", _TOTALS, "of all layers"),
        ),
        dict[str, Any],
    ),
)


class Work(Protocol):
    """What is told of a layer: output shape and multiply-adds forward per sample, parameters, FLOP of training."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def parameters(self) -> int: ...
    @property
    def forward_mac(self) -> int: ...
    @property
    def training_flop(self) -> int: ...


def network_work_document(network: Network, layers: Sequence[Work], totals: WorkTotals) -> dict[str, Any]:
    """Return the document of a network, of the work of each of its layers, in order, and of all."""
    keys = NETWORK.document(network)
    rows = [
        {**row, "output": list(one.shape), **_figures(one)} for row, one in zip(keys["layers"], layers, strict=True)
    ]
    figures = _figures(totals) | {"forward_multiply_adds": totals.forward_mac, "kernel_calls": totals.kernel_calls}
    opening = {"format": NETWORK_WORK.format, "version": NETWORK_WORK.version}
    return keys | opening | {"layers": rows, "totals": figures}


def _figures(one: Work | WorkTotals) -> dict[str, int]:
    return {
        "parameters": one.parameters,
        "forward_flop": 2 * one.forward_mac,
        "training_flop": one.training_flop,
    }
