"""What autograd saves of a model as it is written, where its layers would keep less: GELU, norms, gates of primitives.

An operator saves inputs, its output, or neither, as PyTorch's tools/autograd/derivatives.yaml declares. Memory that
several save, or that is saved under several shapes, counts once. Masks and whole numbers are left to kinds of layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

from planner.domain.layers.record import INPUT, LAYER_KINDS, Layer, Site
from planner.domain.network import Network, input_shapes, layer_shapes, parameters_of
from planner.networks.operators import CONSTANT, SAMPLE, UNKNOWN, WEIGHT, Graph, Operator, Tensor
from planner.networks.rewrites import behind_moves

__all__ = ["Saved"]

_FACTORS = ("mul", "addcmul", "product", "convolution")
"""Kinds and functions of which each operand is saved for the gradient of the other."""
_ADDENDS = ("addmm", "baddbmm", "addmv", "addcmul")
"""Whose first operand is added."""
_EXTREMES = ("amax", "amin", "std", "prod", "logsumexp", "linalgvectornorm", "reducemax", "reducemin", "reducel2")
_RESULTS = (
    "relu", "tanh", "sigmoid", "exp", "exp2", "expm1", "sqrt", "rsqrt", "reciprocal", "tan", "softmax", "safesoftmax",
    *_EXTREMES,
)  # fmt: skip
_ARGUMENTS = (
    "pow", "square", "log", "log1p", "log2", "erf", "sin", "cos", "abs", "gelu", "silu", "swish", "mish", "softplus",
    "elu", "celu", "selu", "leakyrelu", "hardtanh", "relu6", "clamp", "clampmin", "clampmax", "clip", "threshold",
    "hardswish", "hardsigmoid", "logsigmoidforward", "softsign", "glu", "prelu", "prelukernel", "maximum", "minimum",
    "max", "min", "atan2", "var", "varmean", "reducesumsquare", "gather", "reflectionpad2d", "replicationpad2d",
    "gridsampler2d", *_EXTREMES,
)  # fmt: skip
_NAMED = ("pointwise", "reduce", "softmax", "copy")
"""Kinds of which the name of the operator tells what is saved."""
_KINDS = ("batch_norm", "group_norm", "layer_norm", "rms_norm", "pool", "attention", UNKNOWN)
"""Whose inputs are saved."""
_RESULTS_IN_PLACE = (*_RESULTS, "elu", "leakyrelu", "celu", "selu")
_EXPORTED = ("Erf", "Sigmoid")
"""Of functions that an exporter takes apart, where PyTorch has one operator: GELU and SiLU."""


def _base(one: Operator) -> str:
    return one.label.removeprefix("aten.").partition(".")[0].replace("_", "").lower()


def _is_in_place(one: Operator) -> bool:
    return one.label.startswith("aten.") and one.label.endswith("_") and not one.label.endswith("__")


def _memory(tensor: Tensor) -> Tensor:
    """Return the tensor whose memory a tensor is in, as a view of it or written over it."""
    while tensor.maker is not None and tensor.maker.samples():
        one, base = tensor.maker, _base(tensor.maker)
        is_view = one.kind == "slice" or (one.kind == "view" and (not one.attributes.get("moved") or _is_attended(one)))
        is_plain = one.attributes.get("function") in ("add", "mask") or all(
            other.role == CONSTANT for other in one.inputs[1:]
        )
        is_over = _is_in_place(one) and one.kind == "pointwise" and (
            base in _RESULTS_IN_PLACE or (is_plain and base not in _ARGUMENTS)
        )  # fmt: skip
        is_same = one.kind == "dropout" and not one.attributes["rate"]
        if not (is_view or is_over or is_same or one.label.startswith(("aten.expand", "aten.broadcast_to"))):
            break
        tensor = one.samples()[0]
    return tensor


def _is_attended(one: Operator) -> bool:
    """Tell whether a copy is of attention in one kernel, which writes heads side by side, so that none is made."""
    maker = behind_moves(one.output).maker
    return maker is not None and maker.kind == "attention"


def _has_weights(one: Operator) -> bool:
    """Tell whether attention has scores in memory, as no kernel has gradients of a bias."""
    return any(tensor.role == WEIGHT for tensor in one.inputs)


def _saved(one: Operator, trained: set[Tensor]) -> Iterator[Tensor]:
    """Yield what an operator saves; ``trained``: tensors that have a gradient, besides weights."""
    base, inputs, function = _base(one), one.inputs, one.attributes.get("function")
    gradients = [tensor.role == WEIGHT or tensor in trained for tensor in inputs]
    if one.kind in _FACTORS or function in _FACTORS:
        for at, tensor in enumerate(inputs):
            if any(gradients[:at] + gradients[at + 1 :]) and (at or base not in _ADDENDS):
                yield tensor
    elif function == "div":
        yield from inputs if any(gradients[1:]) else inputs[1:]
    else:
        is_whole_mean = one.kind == "pool" and one.attributes.get("resized") and prod(one.output.shape[2:]) == 1
        is_in_place = _is_in_place(one) and base in _RESULTS_IN_PLACE
        is_named = one.kind in _NAMED
        if ((is_named and base in _ARGUMENTS) or one.kind in _KINDS) and not is_in_place:
            if one.kind == "attention":  # keys of fewer heads are read by several in one kernel
                inputs = [behind_moves(tensor, ("view", "expand")) for tensor in inputs]
            yield from () if is_whole_mean and one.attributes.get("mode") == "average" else inputs
        if (is_named and base in _RESULTS) or (one.kind == "attention" and not _has_weights(one)) or is_in_place:
            yield one.output
        if one.kind in ("layer_norm", "group_norm"):  # statistics of rows
            yield from one.outputs[1:]


class Saved:
    """What a graph saves before it is rewritten, and of which operators each layer is made then."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.readers = graph, graph.readers()
        self.elements: dict[Operator, int] = {}
        trained, seen = set[Tensor](), set[Tensor]()
        for one in graph.needed():
            self.elements[one] = 0
            if not any(tensor.role == WEIGHT or tensor in trained for tensor in one.inputs):
                continue
            trained.update(one.outputs)
            for tensor in {_memory(saved) for saved in _saved(one, trained) if saved.role == SAMPLE} - seen:
                seen.add(tensor)
                self.elements[one] += max(1, tensor.size // graph.batch)
            if one.kind == "attention" and _has_weights(one):
                query, key = (tensor.shape for tensor in one.inputs[:2])
                self.elements[one] += prod(query[:-1]) * key[-2] // graph.batch

    def owners(self) -> dict[Operator, list[Operator]]:
        """Return, of the rewritten graph, the operators that each has become one of, itself among them."""
        there = self.graph.needed()
        owner = {one: one for one in there}
        owner |= {part: one for one in there for part in one.attributes.get("merged", ()) if part not in owner}
        for one in reversed(self.elements):
            if one not in owner:
                readers = [owner[reader] for tensor in one.outputs for reader in self.readers.get(tensor, ())]
                owner[one] = min(readers, key=lambda reader: reader.place) if readers else there[-1]
        groups: dict[Operator, list[Operator]] = {one: [] for one in there}
        for one in self.elements:
            groups[owner[one]].append(one)
        return groups

    def kept(self, network: Network, made: Mapping[Operator, Sequence[str]]) -> Network:
        """Return the network whose layers keep what their operators save.

        ``made`` : the layers of each operator of the rewritten graph, in order
        """
        counts, groups = _counted(network), self.owners()
        shapes, by_name = layer_shapes(network), {layer.name: layer for layer in network.layers}
        kept: dict[str, float] = {}
        owed = 0.0
        for one, names in made.items():
            parts = groups.get(one, [])
            of_layers = [name for name in names if not LAYER_KINDS[by_name[name].kind].is_view]
            saved = sum(self.elements[part] for part in parts)
            has_statistics = sum(self.elements[part] > 0 for part in parts) > 1 or len(one.outputs) > 1
            counted = sum(counts[name][0] + counts[name][1] * has_statistics for name in of_layers)
            if any(part.label in _EXPORTED for part in parts if part is not one):
                continue
            owed += saved - counted
            if of_layers and owed > 0:
                kept[of_layers[-1]] = owed / prod(shapes[of_layers[-1]])
            owed = min(owed, 0.0) if of_layers else owed
        return replace(network, layers=tuple(replace(one, kept=kept.get(one.name, 0.0)) for one in network.layers))


def _counted(network: Network) -> dict[str, tuple[int, float]]:
    """Return the elements that each layer keeps by its kind, tensors once, and statistics in elements of 4 bytes."""
    shapes, root, seen = layer_shapes(network), {INPUT: INPUT}, set[str]()
    trained = {INPUT: False}
    found = {}
    for layer in network.layers:
        kind, inputs = LAYER_KINDS[layer.kind], input_shapes(layer, shapes)
        parameters, flows = parameters_of(layer, inputs[0]), tuple(trained[source] for source in layer.inputs)
        trained[layer.name] = parameters > 0 or any(flows)
        root[layer.name] = root[layer.inputs[0]] if kind.is_view else layer.name
        found[layer.name] = 0, 0.0
        if trained[layer.name]:
            site = Site(0, layer, inputs, shapes[layer.name], parameters, flows, 1, is_kept=False)
            of_inputs, of_output = layer.keeps
            names = {root[name] for name in (*layer.inputs * of_inputs, *(layer.name,) * of_output)} - seen
            seen |= names
            statistics = kind.kept_besides(site, 0) / 4 * _has_statistics(layer)
            besides = 0 if layer.kind == "embedding" else kind.kept_besides(site, 1) - kind.kept_besides(site, 0)
            found[layer.name] = sum(prod(shapes[name]) for name in names) + besides, statistics
    return found


def _has_statistics(layer: Layer) -> bool:
    return layer.kind.endswith("_norm") or layer.kind == "rotary"
