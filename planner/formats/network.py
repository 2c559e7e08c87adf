"""Network files (TOML): layers as a graph, every attribute spelled out; their work (JSON); data set files (TOML).

Also the lists of what is bundled by name (JSON).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from planner.domain.kernels import LayerWork, Work, WorkTotals
from planner.domain.layers.record import INPUT, LAYER_KINDS, Layer
from planner.domain.network import Network, layer_parameters, layer_shapes
from planner.domain.request import Dataset
from planner.errors import ParameterError
from planner.formats.documents import Kind
from planner.formats.fields import (
    LARGEST_WHOLE,
    Field,
    Flag,
    ListOf,
    MapOf,
    Name,
    Number,
    OneOf,
    Table,
    Text,
    Whole,
    values_of,
    without_none,
)

MOST_ELEMENTS = 10**13
"""Of an output for one sample, and parameters of a layer: the largest networks have as many in all."""
_ATTRIBUTE = OneOf(
    (Flag(), Whole(least=0, most=LARGEST_WHOLE), Number(), Text(), ListOf(Whole(least=0), least=2, most=2)),
    rule="true, false, text, a number of at least 0, or two whole numbers",
)
_LAYER = Table.of(
    Layer,
    Field("kind", Text(LAYER_KINDS.keys()), "what it computes"),
    Field("inputs", ListOf(Name(), least=1), "names of the layers it reads; the one before unless given", None),
    Field("attributes", MapOf(_ATTRIBUTE), "settings of its kind; sizes of both axes are one number or two", None),
    make=dict,
)
_FOUND = "key must be left out, as blocks, heads and widths are found in the layers; delete it"


def _network(layers: tuple[dict[str, Any], ...], **keys: Any) -> Network:
    """Return the network, or raise UsageError where a layer cannot read what it is given, or is beyond all belief."""
    graph: list[Layer] = []
    for one in layers:
        before = graph[-1].name if graph else INPUT
        graph.append(Layer(**one | {"inputs": one["inputs"] or (before,), "attributes": one["attributes"] or {}}))
    network = Network(layers=tuple(graph), **keys)
    for name, shape in layer_shapes(network).items():
        if math.prod(shape) > MOST_ELEMENTS:
            raise ParameterError(f"layer {name}: elements a sample", f"at most {MOST_ELEMENTS:,}", math.prod(shape))
    try:
        parameters = int(layer_parameters(network).max())
    except OverflowError:  # more than 64 bits count
        parameters = 2**63
    if parameters > MOST_ELEMENTS:
        raise ParameterError("parameters of a layer", f"at most {MOST_ELEMENTS:,}", f"{parameters:,} or more")
    return network


_NETWORK: Table[Network] = Table.of(Network, make=_network, gone={"transformer": _FOUND, "blocks": _FOUND})
NETWORK = Kind("network", "toml", _NETWORK)


_WORK = Whole(least=0, most=10**18)
_FORWARD = Field("forward_flop", _WORK, "of products, forward, a sample: two a multiply-add")
_LAYER_WORK = Table(_LAYER, Table.of(LayerWork, _FORWARD))
_TOTALS = Table.of(
    WorkTotals,
    _FORWARD,
    Field("forward_multiply_adds", _WORK, "of products, forward, a sample", into="forward_mac"),
    make=dict,
)
_NETWORK_WORK = Table.of(
    Network,
    Field("layers", ListOf(_LAYER_WORK, least=1), "layers, each behind those it reads"),
    Field("totals", _TOTALS, "of all layers"),
    make=dict,
)
NETWORK_WORK = Kind("network-work", "json", _NETWORK_WORK)


def network_work_document(network: Network, layers: Sequence[LayerWork], totals: WorkTotals) -> dict[str, Any]:
    """Return the document of a network, of the work of each of its layers, in order, and of all."""

    def told(one: Work, **others: Any) -> dict[str, Any]:
        trained = None if one.trained == one.parameters else one.trained
        return values_of(one, **others, forward_flop=one.forward_flop, trained=trained)

    rows = [told(work, **values_of(layer)) for layer, work in zip(network.layers, layers, strict=True)]
    return NETWORK_WORK.document(values_of(network, layers=rows, totals=told(totals)))


DATASET = Kind("dataset", "toml", Table.of(Dataset))


LISTED_KINDS = ("networks", "clusters", "calibrations", "datasets", "accelerators", "frameworks")
"""What is listed, and shown by name."""


_NAMES = Table(
    *(Field(what, ListOf(Name()), f"names of bundled {what}", None) for what in LISTED_KINDS),
    Field("own", ListOf(Name()), "names of this user's own calibrations, newest first, or of own frameworks", None),
    make=without_none,
    doc="the names of one kind of thing",
)
NAMES = Kind("names", "json", _NAMES)


def names_document(what: str, names: Sequence[str], own: Sequence[str] = ()) -> dict[str, Any]:
    """Return the document of the names of one of LISTED_KINDS, and of the user's ``own``, if any."""
    return NAMES.document({what: names, "own": list(own) or None})
