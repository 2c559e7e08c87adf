"""From operators to layers: one mapping for every importer, from kinds of operators to kinds of layers.

Views are no layers: a tensor stands in the form in which its layer made it, and is given another where a layer reads it
so, an image (channels, height, width) or a sequence (positions, features). Copies that only change an order count
nothing, as in the zoo.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

from planner.domain.layers.record import INPUT, LAYER_KINDS, AttributeValue, Shape, Site
from planner.domain.network import Network, input_shapes, layer_shapes
from planner.errors import InputFileError, ParameterError
from planner.networks.forms import IMAGE, Forms, Saved, sizes_of, tokens_of
from planner.networks.operators import WEIGHT, Graph, Operator, Tensor, rewrite

_ACTIVATIONS = {
    "relu": "relu", "leaky_relu": "leaky_relu", "tanh": "tanh", "sigmoid": "sigmoid", "gelu": "gelu", "silu": "silu",
    "hard_swish": "hard_swish", "hard_sigmoid": "hard_sigmoid", "elu": "silu", "softplus": "silu", "mish": "silu",
    "exp": "sigmoid", "erf": "silu", "pow": "silu", "log": "silu", "sqrt": "sigmoid", "rsqrt": "sigmoid",
    "square": "silu", "sin": "silu", "cos": "silu", "abs": "silu", "prelu": "silu", "reciprocal": "sigmoid",
}  # fmt: skip
"""Function -> that of an activation which moves and keeps as much."""
_CLASSES = 1000


def network_of_graph(graph: Graph, path: str, *, allow_unknown: bool = False) -> Network:
    """Return the network of a model that was read.

    InputFileError where operators are not known, with their shares, unless they are allowed.
    """
    saved = Saved(graph)
    rewrite(graph)
    layers, made = _Layers(graph), dict[Operator, list[str]]()
    for one in sorted(graph.needed(), key=lambda one: one.kind != "embedding"):  # one, of which tokens have parts
        made[one] = layers.add(one)
    layers.finish()
    network = saved.kept(layers.network(), made)
    if layers.unknown and not allow_unknown:
        raise InputFileError(path, layers.unknown_words(network))
    return network


class _Layers(Forms):
    """Appends the layers of operators, in order."""

    def add(self, one: Operator) -> list[str]:
        """Append the layers of one operator, and return their names."""
        before = len(self.net.layers)
        makers: Mapping[str, Callable[[Operator], None]] = {
            "view": self._view, "expand": self._view, "slice": self._slice, "concat": self._concat,
            "pointwise": self._pointwise, "reduce": self._reduce, "product": self._product,
            "convolution": self._convolution, "embedding": self._embedding, "softmax": self._softmax,
            "loss": self._loss, "batch_norm": self._image_norm, "group_norm": self._group_norm,
            "layer_norm": self._row_norm, "rms_norm": self._row_norm, "pool": self._pool, "upsample": self._upsample,
            "dropout": self._dropout, "attention": self._attention, "gate": self._gate, "copy": self._copy,
        }  # fmt: skip
        leaves = {leaf for tensor in one.inputs for leaf in tensor.parameters()}
        shares, is_frozen = self.is_shared(leaves), all(leaf.is_frozen for leaf in leaves)
        forms, used = dict(self.forms), set(self.used)
        try:
            makers.get(one.kind, self._unknown)(one)
            self.check(before)
        except (ArithmeticError, LookupError, ParameterError):  # layers of that kind do not fit it
            del self.net.layers[before:]
            self.forms, self.used = forms, used
            self._unknown(one)
            self.check(before)
        if leaves and (shares or is_frozen):
            self.mark(before, shares=shares, is_frozen=is_frozen)
        for tensor in one.outputs[1:]:
            if tensor not in self.forms:
                self.forms[tensor] = self.forms[one.output]
        return [layer.name for layer in self.net.layers[before:]]

    def _view(self, one: Operator) -> None:
        self.forms[one.output] = self.forms[max(one.samples(), key=lambda tensor: tensor.size)]

    def _slice(self, one: Operator) -> None:
        """Positions of a sequence, or any other part."""
        source = one.samples()[0]
        axis, start = one.attributes.get("axis", 0), one.attributes.get("start") or 0
        rank = len(source.shape)
        _, form = self.held(source)
        is_sequence = rank == 3 and form == source.shape[1:] and axis % rank == 1
        for tensor in one.outputs:
            shape = self.default(tensor)
            if form == (self.input_shape if source in self.graph.inputs else ()):
                self.forms[tensor] = self.forms[source]
            elif is_sequence and isinstance(start, int):
                start = start % source.shape[1]
                count = self.elements(tensor) // form[1]
                if (start, count) == (0, 1) and len(shape) == 1:
                    name = self.append("first_position", one, self.held(source)[0])
                else:
                    name = self.append("positions", one, self.held(source)[0], start=start, count=count)
                    shape = (count, form[1])
                self.give(one, name, shape, tensor)
                start += count
            else:
                name = self.append("reshape", one, self.held(source)[0], **sizes_of(shape))
                self.give(one, name, shape, tensor)

    def _concat(self, one: Operator) -> None:
        samples, rank = one.samples(), len(one.output.shape)
        axis = one.attributes["axis"] % rank
        shape = self.default(one.output)
        if len(samples) == 1 and len(one.inputs) == 1:
            self._view(one)
        elif len(samples) == len(one.inputs) and len(set(samples)) > 1 and axis in (1, rank - 1) and (
            axis == rank - 1 or rank != IMAGE
        ):  # fmt: skip
            is_last = axis == rank - 1 and rank != 2  # of a vector both are the same
            form = self.image if rank > 2 and not is_last else partial(self.rows, like=one.output)
            name = self.append("concat", one, tuple(self.read(one, tensor, form(tensor)) for tensor in samples))
            self.give(one, name, form(one.output))
        else:
            names = list(dict.fromkeys(self.held(tensor)[0] for tensor in samples))
            weights = [tensor for tensor in one.inputs if tensor.role == WEIGHT]
            name = self.general(one, names, shape, 2 * prod(shape), kernel="copy", parameters=self.own(*weights))
            self.give(one, name, shape)

    def _pointwise(self, one: Operator) -> None:
        function, samples = str(one.attributes.get("function")), one.samples()
        weights = [tensor for tensor in one.inputs if tensor.role == WEIGHT]
        samples.sort(key=lambda tensor: -tensor.size)
        name, form = self.held(samples[0])
        if len(samples) > 1 and samples[0] is not samples[1]:
            self._joined(one, samples, function)
        elif function == "glu":
            shape = self.default(one.output)
            self.give(one, self.general(one, [name], shape, prod(form) + prod(shape), keeps=True), shape)
        elif weights and function == "mul" and weights[0].size == form[0 if len(form) == IMAGE else -1]:
            scaled = self.append("layer_scale", one, name)
            self.give(one, self.take(one, weights[0].size, scaled, form, *weights), form)
        elif function == "mul" and any(
            tensor.size == self.graph.batch for tensor in one.inputs if tensor not in weights
        ):
            self.give(one, self.append("drop_path", one, name), form)
        elif function in _ACTIVATIONS:
            name = self.append("activation", one, name, function=_ACTIVATIONS[function])
            self.give(one, self.take(one, 0, name, form, *weights), form)
        else:
            if prod(form) != self.elements(one.output):
                form = self.default(one.output)
            name = self.general(one, [name], form, 2 * prod(form), parameters=self.own(*weights))
            self.give(one, name, form)

    def _joined(self, one: Operator, samples: list[Tensor], function: str) -> None:
        """Append the sum or product of two tensors, of the same shape or one number a channel."""
        first, second = samples[:2]
        (name, form), (other, gate) = self.held(first), self.held(second)
        is_sum, is_product = function == "add", function == "mul"
        if (is_sum or is_product) and prod(form) == prod(gate) == self.elements(one.output) and name != other:
            if form != gate:
                if name == INPUT or len(form) < len(gate):
                    name, form = self.read(one, first, gate), gate
                else:
                    other = self.read(one, second, form)
            self.give(one, self.append("add" if is_sum else "multiply", one, (name, other)), form)
        elif is_product and len(form) == IMAGE and prod(gate) == form[0] and prod(form) == self.elements(one.output):
            other = self.read(one, second, (form[0], 1, 1))
            self.give(one, self.append("multiply", one, (name, other)), form)
        else:
            shape = form if prod(form) == self.elements(one.output) else self.default(one.output)
            names = list(dict.fromkeys(self.held(tensor)[0] for tensor in samples))
            moved = sum(self.elements(tensor) for tensor in samples) + prod(shape)
            weights = [tensor for tensor in one.inputs if tensor.role == WEIGHT]
            how = {"keeps": not is_sum, "parameters": self.own(*weights)}
            self.give(one, self.general(one, names, shape, moved, **how), shape)

    def _reduce(self, one: Operator) -> None:
        """Append the mean over all pixels or positions; any other sum over an axis."""
        source, axes = one.samples()[0], one.attributes["axes"]
        name, form = self.held(source)
        rank = len(source.shape)
        axes = sorted(axis % rank for axis in axes) if axes else list(range(rank))
        channels = self.elements(one.output)
        if 0 not in axes and len(form) > 1 and axes == list(range(2, rank)) and form[0] == channels:
            name = self.append("global_pool", one, self.read(one, source, self.image(source)))
            self.give(one, name, (channels, 1, 1))
        elif 0 not in axes and axes == list(range(1, rank - 1)) and source.shape[-1] == channels:
            positions = self.elements(source) // channels
            if len(form) != IMAGE or form[0] != channels:
                name = self.append("image", one, self.read(one, source, (positions, channels)), height=1)
            self.give(one, self.append("global_pool", one, name), (channels, 1, 1))
        else:
            shape = self.default(one.output) if 0 not in axes else (1,)
            moved = self.elements(source) + prod(shape)
            self.give(one, self.general(one, [name], shape, moved), shape)

    def _product(self, one: Operator) -> None:
        samples = one.samples()
        weights = [tensor for tensor in one.inputs if tensor.role == WEIGHT]
        if len(samples) > 1:
            self._general_product(one, samples)
        elif not weights:
            shape = self.rows(one.output)
            self.give(one, self.general(one, [self.held(samples[0])[0]], shape, 2 * prod(shape)), shape)
        else:
            self._linear(one, samples[0], weights)

    def _linear(self, one: Operator, source: Tensor, weights: list[Tensor]) -> None:
        shape, form = self.rows(one.output), self.rows(source)
        vectors = (tensor for tensor in weights if len(tensor.shape) == 1)
        bias = [tensor for tensor in vectors if tensor.size == shape[-1] or "merged" in one.attributes]
        matrices = [tensor for tensor in weights if tensor not in bias]
        if len({leaf for tensor in bias for leaf in tensor.parameters()}) != len(bias):
            bias = []  # of parameters and constants: fewer than it has elements
        features_in = sum(tensor.size for tensor in matrices) // shape[-1]
        if features_in * shape[-1] != sum(tensor.size for tensor in matrices) or features_in != form[-1]:
            self._weighted_product(one, source, weights)
            return
        leaves = list(matrices[0].parameters())
        is_tied = len(leaves) == 1 == len(matrices) and leaves[0] is self.table and len(shape) == 2
        how = {"tied": True} if is_tied else {}
        name = self.append("linear", one, self.read(one, source, form), features=shape[-1], bias=bool(bias), **how)
        rows = sum(tensor.size for tensor in bias)
        count = rows if is_tied else features_in * shape[-1] + rows
        if bias and rows != shape[-1]:
            count += shape[-1] - rows  # of merged layers some have a bias
        name = self.take(one, count, name, shape, *(bias if is_tied else weights))
        self.give(one, name, shape)

    def _weighted_product(self, one: Operator, source: Tensor, weights: list[Tensor]) -> None:
        """Append a product with weights on the left, a linear layer over positions."""
        matrix = max(weights, key=lambda tensor: tensor.size)
        shape = self.rows(one.output)
        columns = matrix.shape[-1]
        if len(matrix.shape) <= 3 and self.elements(source) % columns == 0 and (
            self.elements(one.output) == self.elements(source) // columns * (matrix.size // columns)
        ):  # fmt: skip
            form = (self.elements(source) // columns, columns)
            name = self.append(
                "linear", one, self.read(one, source, form), features=matrix.size // columns, bias=len(weights) > 1
            )
            self.give(one, self.take(one, matrix.size, name, shape, *weights), (form[0], matrix.size // columns))
            return
        self._unknown(one)

    def _general_product(self, one: Operator, samples: list[Tensor]) -> None:
        first, second = samples[:2]
        m, k, n = first.shape[-2], first.shape[-1], one.output.shape[-1]
        batch = self.elements(one.output) // (m * n)
        names = [self.read(one, tensor, self.rows(tensor)) for tensor in (first, second)]
        sizes = {"m": m, "n": n, "k": k, "batch": max(1, batch)}
        wanted = (sizes["batch"] * m * k, sizes["batch"] * k * n)
        if (self.elements(first), self.elements(second)) != wanted:
            self._unknown(one)
            return
        self.give(one, self.append("product", one, (names[0], names[1]), **sizes), (sizes["batch"] * m, n))

    def _convolution(self, one: Operator) -> None:
        source = one.samples()[0]
        weights = [tensor for tensor in one.inputs if tensor.role == WEIGHT]
        kernel = _pair(weights[0].shape[2:])
        how = {key: _pair(one.attributes[key]) for key in ("stride", "padding", "dilation")}
        groups, form, shape = one.attributes["groups"], self.image(source), self.image(one.output)
        if len(source.shape) == IMAGE:  # of a row of pixels
            how["padding"] = (how["padding"][0], 0)
            how |= {key: (how[key][0], 1) for key in ("stride", "dilation")}
            kernel = (kernel[0], 1)
        elif len(source.shape) != IMAGE + 1:
            self._unknown(one)
            return
        bias = len(weights) > 1
        if one.attributes.get("transposed"):
            if kernel != how["stride"] or kernel[0] != kernel[1] or groups > 1:
                self._unknown(one)
                return
            name = self.append(
                "up_convolution", one, self.read(one, source, form), channels=shape[0], factor=kernel[0], bias=bias
            )
        else:
            name = self.append(
                "convolution", one, self.read(one, source, form), channels=shape[0], kernel=_plain(kernel),
                groups=groups, bias=bias, **{key: _plain(value) for key, value in how.items()},
            )  # fmt: skip
        self.give(one, self.take(one, sum(tensor.size for tensor in weights), name, shape, *weights), shape)

    def _embedding(self, one: Operator) -> None:
        source = next((tensor for tensor in one.samples()), None)
        tables = [leaf for tensor in one.inputs for leaf in tensor.parameters()]
        starts = tables[1:] if len(self.tokens) > 1 else []  # by position, which start anew with each input
        tables, features = tables[: len(tables) - len(starts)], one.output.shape[-1]
        shape, key = self.rows(one.output), tuple(tables)
        assert source is not None  # noqa: S101 - rows by constants are weights
        before = self.tokens[: self.tokens.index(tokens_of(source))]
        offset = sum(prod(tensor.shape[1:]) for tensor in before)
        if key not in self.embedded:
            rows = [table.size // features for table in tables]
            wide = max((count for count in rows[1:] if count >= shape[0]), default=0)
            others = list(rows[1:])
            if wide:
                others.remove(wide)
            if self.table is None:
                self.table = tables[0]
            name = self.append(
                "embedding", one, INPUT, vocabulary=rows[0], features=features, positions=wide, types=sum(others)
            )
            self.embedded[key] = name, 0
            name = self.take(one, sum(table.size for table in tables), name, (self.input_shape[0], features), *tables)
            self.embedded[key] = name, 0
        name = self.embedded[key][0]
        if shape[0] != self.input_shape[0]:
            name = self.append("positions", one, name, start=offset, count=shape[0])
        self.give(one, self.take(one, 0, name, shape, *starts), shape)

    def _softmax(self, one: Operator) -> None:
        name, form = self.held(one.samples()[0])
        self.give(one, self.append("activation", one, name, function="sigmoid"), form)

    def _loss(self, one: Operator) -> None:
        source = one.samples()[0]
        name = self.append("loss", one, self.read(one, source, self.rows(source)))
        for tensor in one.outputs:
            self.forms[tensor] = name, (1,)

    def _image_norm(self, one: Operator) -> None:
        source = one.samples()[0]
        form = self.rows(source) if len(source.shape) == 2 else self.image(source)
        weights = [tensor for tensor in one.inputs if tensor.role == WEIGHT]
        name = self.append("batch_norm", one, self.read(one, source, form))
        self.give(one, self.take(one, 2 * form[0], name, form, *weights), form)

    def _group_norm(self, one: Operator) -> None:
        name, form = self.held(one.samples()[0])
        weights = [tensor for tensor in one.inputs if tensor.role == WEIGHT]
        moved = {"backward": 5 * prod(form), "keeps": True, "parameters": self.own(*weights)}
        self.give(one, self.general(one, [name], form, 2 * prod(form), **moved), form)

    def _row_norm(self, one: Operator) -> None:
        source = one.samples()[0]
        form = self.rows(source)
        weights = [tensor for tensor in one.inputs if tensor.role == WEIGHT]
        is_plain = one.kind == "layer_norm"
        shift = {} if not is_plain or len(weights) > 1 else {"shift": False}
        if not weights or sum(tensor.size for tensor in weights) != len(weights) * form[-1]:
            self._group_norm(one)
            return
        name = self.append(one.kind, one, self.read(one, source, form), **shift)
        self.give(one, self.take(one, len(weights) * form[-1], name, form, *weights), form)

    def _pool(self, one: Operator) -> None:
        source = one.samples()[0]
        form, shape = self.image(source), self.image(one.output)
        name = self.read(one, source, form)
        if one.attributes.get("resized"):
            if shape == form:
                self.give(one, name, form)
                return
            if shape[1:] == (1, 1):
                self.give(one, self.append("global_pool", one, name), shape)
                return
            sides = tuple(zip(form[1:], shape[1:], strict=True))
            if any(side % part for side, part in sides):
                self.give(one, self.general(one, [name], shape, prod(form) + prod(shape)), shape)
                return
            window = stride = (sides[0][0] // sides[0][1], sides[1][0] // sides[1][1])
            padding = (0, 0)
        else:
            window, stride, padding = (_pair(one.attributes[key]) for key in ("window", "stride", "padding"))
            if len(source.shape) == IMAGE:
                window, stride, padding = (window[0], 1), (stride[0], 1), (padding[0], 0)
        how: dict[str, AttributeValue] = {"mode": str(one.attributes["mode"])}
        how |= {"ceil": bool(one.attributes.get("ceil")), "window": _plain(window), "stride": _plain(stride)}
        self.give(one, self.append("pool", one, name, padding=_plain(padding), **how), shape)

    def _upsample(self, one: Operator) -> None:
        source = one.samples()[0]
        form, shape = self.image(source), self.image(one.output)
        factor, rest = divmod(shape[1], form[1])
        name = self.read(one, source, form)
        if rest or factor * form[2] != shape[2] or factor < 1:
            name = self.general(one, [name], shape, prod(form) + prod(shape))
        elif factor > 1:
            name = self.append("upsample", one, name, factor=factor)
        self.give(one, name, shape)

    def _dropout(self, one: Operator) -> None:
        name, form = self.held(one.samples()[0])
        self.give(one, self.append("dropout", one, name, rate=float(one.attributes["rate"])), form)

    def _gate(self, one: Operator) -> None:
        source = one.samples()[0]
        name = self.read(one, source, self.rows(source))
        name = self.append("gated_activation", one, name, function=str(one.attributes["function"]))
        self.give(one, name, self.rows(one.output) if len(self.rows(source)) > 1 else (self.elements(one.output),))

    def _copy(self, one: Operator) -> None:
        source = one.samples()[0]
        name, shape = self.held(source)[0], self.default(one.output)
        moved = 2 * self.elements(one.output)
        weights = [tensor for tensor in one.inputs if tensor.role == WEIGHT]
        self.give(one, self.general(one, [name], shape, moved, kernel="copy", parameters=self.own(*weights)), shape)

    def _attention(self, one: Operator) -> None:
        """Attention of one tensor with queries, keys and values side by side, or of queries and both others."""
        query, key, value = (one.attributes[part] for part in ("query", "key", "value"))
        source, samples = one.inputs[0], one.samples()
        learned = [tensor for tensor in one.inputs if tensor.role == WEIGHT]
        positions, width, values = query[-2], query[-1], value[-1]
        rows, is_cross = self.rows(source), len(samples) > 1
        if prod(query[:-2]) % self.graph.batch:
            rule = "inputs must have samples on their first axis, as with batch_first=True"
            raise InputFileError(self.graph.name, f"{rule}, got attention of {query} to {self.graph.batch} of these")
        heads, kv_heads, windows = prod(query[:-2]) // self.graph.batch, 0, 1
        if not is_cross:
            heads, kv_heads, windows = _split(rows, query, values, self.graph.batch)
        how: dict[str, AttributeValue] = {
            "heads": heads,
            "causal": bool(one.attributes["causal"]) and windows == 1,
            "fused": bool(one.attributes["fused"]),
            "dropout": 0.0 if one.attributes["fused"] else float(one.attributes["dropout"]),
        }  # fmt: skip
        shape = (windows * positions, heads * values)
        if is_cross:
            self._cross(one, samples, how, (query, key, values))
            return
        name = self.read(one, source, (windows * positions, self.elements(source) // (windows * positions)))
        norms = list(one.attributes["norms"])
        if one.attributes["rotated"] or one.attributes["norm"]:
            norm = int(one.attributes["norm"])
            features = int(one.attributes["rotated"]) or (heads + kv_heads) * width
            name = self.append("rotary", one, name, features=features, norm=norm)
            name = self.take(one, 2 * norm, name, (positions, rows[-1]), *norms)
        if kv_heads != heads:
            how["kv_heads"] = kv_heads
        if values != width:
            how["value_size"] = values
        if windows > 1:
            how["windows"] = windows
        if learned:
            count = self.own(*learned)
            how |= {"bias": "learned", "fused": False}
            if count and count % heads == 0:
                how["buckets"] = count // heads
            elif count:
                name = self.general(one, [name], self.rows(source), 2 * self.elements(source), parameters=count)
        self.give(one, self.append("attention", one, name, **how), shape)

    def _cross(
        self, one: Operator, samples: list[Tensor], how: dict[str, AttributeValue], sizes: tuple[Shape, Shape, int]
    ) -> None:
        query, key, _ = sizes
        heads, width = prod(query[:-2]) // self.graph.batch, query[-1]
        features = heads * width
        how = {name: value for name, value in how.items() if name != "causal" or value}
        if self.elements(samples[1]) != 2 * features * key[-2] or self.elements(samples[0]) != features * query[-2]:
            self._unknown(one)
            return
        names = (self.read(one, samples[0], (query[-2], features)), self.read(one, samples[1], (key[-2], 2 * features)))
        how.pop("causal", None)
        self.give(one, self.append("cross_attention", one, names, **how), (query[-2], features))

    def _unknown(self, one: Operator) -> None:
        """Append what is not known as an operator that reads its inputs and writes its output."""
        shape = self.default(one.output)
        names = list(dict.fromkeys(self.held(tensor)[0] for tensor in one.samples()))
        weights = [tensor for tensor in one.inputs if tensor.role == WEIGHT]
        moved = sum(self.elements(tensor) for tensor in one.samples()) + prod(shape)
        name = self.general(one, names, shape, moved, keeps=True, parameters=self.own(*weights))
        self.unknown.append((one.label, name))
        for tensor in one.outputs:
            self.forms[tensor] = name, self.default(tensor) if tensor is one.output else shape

    def finish(self) -> None:
        """Append the loss of every output that is none."""
        for output in self.graph.outputs:
            form = self.held(output)[1]
            if form != (1,):
                end = Operator("loss", [], name="loss")
                shape = form if len(form) == IMAGE and form[1:] != (1, 1) else self.rows(output)
                self.append("loss", end, self.read(end, output, shape))

    def network(self) -> Network:
        """Return the network; what is left out of it is said."""
        left = [leaf for leaf in self.graph.parameters if leaf not in self.used]
        if left:
            count = sum(leaf.size for leaf in left)
            words = ", ".join(leaf.name for leaf in left[:3]) + (", ..." if len(left) > 3 else "")
            self.notes.append(f"{count:,} parameters that the output does not depend on are left out ({words}).")
        if self.shared:
            self.notes.append(f"{self.shared:,} parameters that layers share are counted in each of these layers.")
        network = self.net.network(self.graph.name, self.input_shape, "read from a model", None)
        network = self.marked(network)
        if any(one.kind.endswith("attention") for one in network.layers):
            network = replace(network, optimizer="adam")
        is_photo = len(self.input_shape) == IMAGE and self.graph.outputs[0].shape[-1:] == (_CLASSES,)
        return replace(network, unmodelled=tuple(self.notes), dataset="imagenet-1k" if is_photo else None)

    def unknown_words(self, network: Network) -> str:
        """Return the sentence on operators that are not known, with their shares of FLOP and bytes, forward.

        One that is not known counts one FLOP an element, and two a position for each of its parameters; bytes are those
        of every tensor, read and written once.
        """
        shapes, unknown = layer_shapes(network), {name for _, name in self.unknown}
        flop, moved = dict[str, int](), dict[str, int]()
        for layer in network.layers:
            inputs, output = input_shapes(layer, shapes), prod(shapes[layer.name])
            site = Site(0, layer, inputs, shapes[layer.name], 0, (), 1)
            flop[layer.name] = 2 * LAYER_KINDS[layer.kind].macs(site) or output
            if layer.name in unknown:  # each position, the last axis of its input, is multiplied with its weights
                flop[layer.name] += 2 * layer.integer("parameters") * prod(inputs[0][:-1])
            moved[layer.name] = (output + sum(map(prod, inputs))) * (not LAYER_KINDS[layer.kind].is_view)
        kinds: dict[str, list[str]] = {}
        for label, name in self.unknown:
            kinds.setdefault(label, []).append(name)
        words = "; ".join(
            f"{label} ({len(names):,} time{'s' * (len(names) != 1)}, with "
            f"{sum(flop[one] for one in names) / sum(flop.values()):.1%} of the FLOP and "
            f"{sum(moved[one] for one in names) / sum(moved.values()):.1%} of the bytes)"
            for label, names in kinds.items()
        )
        return f"operators must be known, got {words}; --allow-unknown prices them by their bytes"


def _pair(value: Any) -> tuple[int, int]:
    sides = [int(side) for side in (value if isinstance(value, list | tuple) else [value])] or [1]
    return sides[0], sides[-1]


def _plain(pair: tuple[int, ...]) -> AttributeValue:
    return pair[0] if pair[0] == pair[1] else (pair[0], pair[1])


def _split(rows: Shape, query: Shape, values: int, batch: int) -> tuple[int, int, int]:
    """Return heads, heads of keys and values, and windows of attention that reads rows of queries, keys and values.

    Heads of all windows are known; where these are no axis of their own, windows are the fewest with which heads make
    up the features of a row.
    """
    positions, width = query[-2:]
    every = prod(query[:-2]) // batch
    apart = [every // query[-3]] if len(query) > 3 else []  # heads, positions, features
    for windows in (*apart, *range(1, every + 1)):
        heads, rest = divmod(every, windows)
        if rest:
            continue
        kv_heads, rest = divmod(rows[-1] - heads * width, width + values)
        if not rest and 1 <= kv_heads <= heads and heads % kv_heads == 0:
            return heads, kv_heads, windows
    kv_heads = (prod(rows) // positions - every * width) // (width + values)
    return every, max(1, min(kv_heads, every)), 1
