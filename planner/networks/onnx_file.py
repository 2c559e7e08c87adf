"""ONNX files: the graph as it stands, with the shapes that the ``onnx`` package infers; weights are not read.

Initial values of more than one number are parameters, but for statistics of batch normalisation, what only says where
something stands, and what goes through sines; of one number those of operators that have parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from planner.errors import InputFileError, MissingPackageError, ParameterError
from planner.networks.operators import CONSTANT, SAMPLE, UNKNOWN, WEIGHT, Graph, Tensor, is_square
from planner.networks.torch_module import BATCH, check_shapes

_VIEWS = ("Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Cast", "CastLike")
_FUNCTIONS = {
    "Add": "add", "Sub": "add", "Sum": "add", "Mul": "mul", "Div": "div", "Relu": "relu", "Clip": "relu",
    "LeakyRelu": "leaky_relu", "Tanh": "tanh", "Sigmoid": "sigmoid", "Gelu": "gelu", "HardSwish": "hard_swish",
    "HardSigmoid": "hard_sigmoid", "Elu": "elu", "Selu": "elu", "Celu": "elu", "Softplus": "softplus", "Mish": "mish",
    "PRelu": "prelu", "Swish": "silu", "Where": "mask", "Trilu": "order", "Less": "order", "LessOrEqual": "order",
    "Greater": "order", "GreaterOrEqual": "order", "Equal": "mask", "Pow": "pow", "Sqrt": "sqrt", "Exp": "exp",
    "Log": "log", "Erf": "erf", "Neg": "neg", "Abs": "abs", "Reciprocal": "reciprocal", "Sin": "sin", "Cos": "cos",
    "Max": "maximum", "Min": "minimum", "Not": "mask", "And": "mask", "Or": "mask", "IsNaN": "mask", "Softsign": "tanh",
}  # fmt: skip
_KINDS: Mapping[str, str] = {
    **dict.fromkeys(_VIEWS, "view"),
    **dict.fromkeys(_FUNCTIONS, "pointwise"),
    **dict.fromkeys(("Slice", "Split", "Gather"), "slice"),
    **dict.fromkeys(("Expand", "Tile"), "expand"),
    "Concat": "concat",
    **dict.fromkeys(("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceSumSquare"), "reduce"),
    **dict.fromkeys(("MatMul", "Gemm"), "product"),
    **dict.fromkeys(("Conv", "ConvTranspose"), "convolution"),
    "BatchNormalization": "batch_norm",
    "LayerNormalization": "layer_norm",
    **dict.fromkeys(("RMSNormalization", "SimplifiedLayerNormalization"), "rms_norm"),
    **dict.fromkeys(("GroupNormalization", "InstanceNormalization"), "group_norm"),
    **dict.fromkeys(("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"), "pool"),
    "Softmax": "softmax",
    "LogSoftmax": "loss",
    **dict.fromkeys(("Resize", "Upsample"), "upsample"),
    "Dropout": "dropout",
    "Attention": "attention",
    **dict.fromkeys(
        ("Pad", "DepthToSpace", "SpaceToDepth", "GatherElements", "GatherND", "ScatterND", "CumSum"), "copy"
    ),
}
_ONE_NUMBER = (
    "Conv", "ConvTranspose", "Gemm", "MatMul", "PRelu", *(name for name in _KINDS if "Normalization" in name),
)  # fmt: skip
"""Operators whose second and third inputs are parameters, of one number too."""
_RECURRENT = ("LSTM", "GRU", "RNN")
_SMALL = 512
"""Numbers of a constant that shapes may be made of, at most."""
_HIDDEN = -1e4
"""What is added to scores that do not count is lower."""
_FLOATS = (1, 10, 11, 16)
"""Types of numbers with a fraction: float, float16, double, bfloat16."""


def onnx_graph(path: str, inputs: str) -> Graph:
    """Return the operators of an ONNX file.

    ``inputs``: sizes of a sample, where the file leaves them open. MissingPackageError without the package;
    InputFileError where the file is no model, or the shape of a tensor does not follow; ParameterError where a size is
    open.
    """
    try:
        import onnx  # noqa: PLC0415 - few have it
        import onnx.reference  # noqa: PLC0415
    except ImportError:
        raise MissingPackageError(
            "an ONNX file is read by the package onnx; pip install 'epoch-planner[onnx]'"
        ) from None
    try:
        model = onnx.load(path, load_external_data=False)
    except OSError as error:
        raise InputFileError(path, f"file must be readable, got {error.strerror}") from None
    except Exception:  # noqa: BLE001 - whatever a parser of protocol buffers raises
        raise InputFileError(path, "file must be an ONNX model, got one that cannot be parsed") from None
    if not model.graph.node:
        raise InputFileError(path, "file must be an ONNX model with operators, got none")
    named = {one.name for one in model.graph.initializer}
    free = [one for one in model.graph.input if one.name not in named]
    if not free:
        raise InputFileError(path, "model must have an input, got none")
    _fix(free, path, inputs)
    return _Reader(onnx, path, model).graph


def _fix(inputs: list[Any], path: str, text: str) -> None:
    """Set open sizes of inputs: batches, and samples as typed."""
    typed = check_shapes(text, f"argument input of {path}") if text else []
    if typed and len(typed) != len(inputs):
        raise ParameterError(f"argument input of {path}", f"sizes of {len(inputs)} inputs, split by +", text)
    for at, one in enumerate(inputs):
        sides = one.type.tensor_type.shape.dim
        got = "x".join(str(side.dim_value or side.dim_param or "?") for side in sides)
        if typed and len(typed[at]) != len(sides) - 1:
            raise ParameterError(f"argument input of {path}", f"{len(sides) - 1} sizes of {one.name}", text)
        for place, side in enumerate(sides):
            if typed and place:
                side.dim_value = typed[at][place - 1]
            elif side.dim_value <= 0 and not place:
                side.dim_value = BATCH
            elif side.dim_value <= 0:
                remedy = f"type {path}:input= and the sizes of a sample, such as 3x224x224 or 512"
                raise ParameterError(f"input {one.name} of {path}", "of fixed sizes behind the batch", got, remedy)


class _Reader:
    """Turns nodes into operators."""

    def __init__(self, onnx: Any, path: str, model: Any) -> None:
        self.onnx, self.path = onnx, path
        graph = model.graph
        self.versions = {one.domain: one.version for one in model.opset_import}
        self.shapes: dict[str, tuple[int, ...] | None] = {}
        self.types: dict[str, int] = {}
        self.protos: dict[str, Any] = {}
        self.tensors: dict[str, Tensor] = {}
        self.parts: dict[tuple[Tensor | int, ...], Tensor] = {}
        self.values = {one.name: one for one in graph.initializer}
        for one in graph.initializer:
            self._note(one.name, onnx.helper.make_tensor_type_proto(one.data_type, list(one.dims)))
        for one in graph.input:
            self._note(one.name, one.type)
        inputs = []
        for one in graph.input:
            if one.name not in self.values:
                shape = self.shapes[one.name] or (BATCH,)
                is_ignored = self.types[one.name] == self.onnx.TensorProto.BOOL
                self.tensors[one.name] = Tensor(shape, CONSTANT if is_ignored else SAMPLE, name=one.name)
                inputs += [] if is_ignored else [self.tensors[one.name]]
        name = path.rpartition("/")[2].removesuffix(".onnx")
        self.graph = Graph(name, inputs[0].shape[0] if inputs[0].shape else BATCH, inputs, [], is_merged=True)
        self._read_values(graph)
        for node in graph.node:
            self._read(node)
        self.graph.outputs = [self.tensors[graph.output[0].name]]

    def _read_values(self, graph: Any) -> None:
        statistics = {
            name for node in graph.node if node.op_type == "BatchNormalization" for name in list(node.input)[3:5]
        }
        places = ("Where", "Resize", "Clip", "Trilu")
        placed = {name for node in graph.node if node.op_type in places for name in node.input}
        gathered = {name for node in graph.node if node.op_type == "Gather" for name in node.input}
        tables = {one.name: one for one in graph.initializer if one.name in gathered and len(one.dims) > 1}
        batch = self.graph.batch
        single = {name for node in graph.node if node.op_type in _ONE_NUMBER for name in node.input[1:3]}
        single |= {name for node in graph.node if node.op_type in _RECURRENT for name in node.input[1:4]}
        last = {node.output[0] for node in graph.node if node.op_type == "MatMul" and node.input[1] in single}
        single |= {name for node in graph.node if node.op_type == "Add" and last & {*node.input} for name in node.input}
        joined = ("Mul", "Add", "Concat", "Expand", "Slice")
        others = {name for node in graph.node if node.op_type not in joined for name in node.input}
        summed = {name for node in graph.node if node.op_type != "Mul" for name in node.input}
        for one in sorted(graph.initializer, key=lambda one: one.name not in tables):
            shape = tuple(one.dims)
            is_some = prod(shape) > 1 or (bool(shape) and one.name in single)
            is_weight = one.data_type in _FLOATS and is_some and one.name not in statistics | placed
            if is_weight and sum(side > 1 for side in shape[-2:]) > 1 and one.name not in others:
                is_masked = self._array(one).min() <= _HIDDEN
                is_weight = one.name in summed and not is_masked  # no sines of positions
            tensor = Tensor(shape, WEIGHT if is_weight else CONSTANT, name=one.name)
            source = self._copied(one, tables, batch) if is_weight and len(shape) > 1 else None
            if source is not None:
                tensor = self.graph.add("view", [source], [shape]).output
            elif is_weight:
                self.graph.parameters.append(tensor)
            tensor.is_mask = is_square(shape) and tensor.role == CONSTANT
            self.tensors[one.name] = tensor

    def _copied(self, one: Any, tables: Mapping[str, Any], batch: int) -> Tensor | None:
        """Return the parameter that an exporter copied: a table turned round, or what it repeated for each sample."""
        shape, read = tuple(one.dims), self._array
        for name, table in tables.items():
            is_turned = tuple(table.dims) == shape[::-1] and one.name != name and name in self.tensors
            if is_turned and np.array_equal(read(table), read(one).T):
                return self.tensors[name]
        if len(shape) < 3 or shape[0] != batch or not (read(one) == read(one)[:1]).all():
            return None
        once = read(one)
        for axis in range(len(shape)):
            first = once.take([0], axis)
            once = first if (once == first).all() else once
        source = Tensor(once.shape, WEIGHT if once.size > 1 else CONSTANT, name=one.name)
        self.graph.parameters += [source] * (once.size > 1)
        return source

    def _array(self, one: Any) -> Any:
        """Return the numbers of an initial value; one that equals nothing where the file that holds them is missing."""
        with suppress(Exception):  # whatever reading raises; no model is refused for lack of its weights
            return self.onnx.numpy_helper.to_array(one, str(Path(self.path).parent))
        place = next((entry.value for entry in one.external_data if entry.key == "location"), "the file itself")
        note = f"Values in {place} cannot be read: copies and masks that an exporter made may count as parameters."
        self.graph.notes += [note] * (note not in self.graph.notes)
        return np.full(1, np.nan)

    def _note(self, name: str, proto: Any) -> None:
        """Note the type of a tensor, and its shape where all its sides are known."""
        kind = proto.tensor_type
        sides = [side.dim_value if side.HasField("dim_value") else -1 for side in kind.shape.dim]
        is_known = kind.HasField("shape") and all(side >= 0 for side in sides)
        self.shapes[name] = tuple(sides) if is_known else None
        self.types[name], self.protos[name] = kind.elem_type, proto

    def _infer(self, node: Any) -> None:
        """Note the shapes of what a node makes; small constants, of which shapes are made, are worked out."""
        onnx, names = self.onnx, [name for name in node.input if name]
        source = self.shapes.get(names[0]) if names else None
        made: dict[str, Any] = {}
        if node.op_type == "Shape" and source is not None:
            given = {one.name: one.i for one in node.attribute}
            sides = source[given.get("start", 0) : given.get("end", len(source))]
            made = {node.output[0]: onnx.numpy_helper.from_array(np.array(sides, dtype=np.int64))}
        elif all(name in self.values for name in names) and self._is_small(node, names):
            inputs = {name: onnx.numpy_helper.to_array(self.values[name]) for name in names}
            with suppress(Exception):  # an operator that the package does not compute
                results = onnx.reference.ReferenceEvaluator(node, opsets=self.versions).run(None, inputs)
                pairs = zip(node.output, results, strict=True)
                made = {name: onnx.numpy_helper.from_array(np.asarray(one)) for name, one in pairs}
        if made:
            self.values |= made
            for name, one in made.items():
                self._note(name, onnx.helper.make_tensor_type_proto(one.data_type, list(one.dims)))
            return
        try:
            schema = onnx.defs.get_schema(node.op_type, self.versions.get(node.domain, 1), node.domain)
            protos = {name: self.protos[name] for name in names}
            data = {name: self.values[name] for name in names if name in self.values and self._is_held(name)}
            imports = [onnx.helper.make_opsetid(*one) for one in self.versions.items()]
            found = onnx.shape_inference.infer_node_outputs(schema, node, protos, data, opset_imports=imports)
        except Exception as error:  # noqa: BLE001 - whatever inference raises
            words = " ".join(str(error).split())[:160] or type(error).__name__
            rule = f"shapes of operator {node.name or node.op_type} must follow from the inputs"
            raise InputFileError(self.path, f"{rule}, got {words}") from None
        for name, proto in found.items():
            self._note(name, proto)

    def _is_held(self, name: str) -> bool:
        """Tell whether a value stands in the file itself, and is small."""
        one = self.values[name]
        return prod(one.dims) <= _SMALL and not one.external_data

    def _is_small(self, node: Any, names: list[str]) -> bool:
        """Tell whether a node reads small constants and makes one."""
        if not all(map(self._is_held, names)):
            return False
        if node.op_type not in ("Expand", "Tile", "ConstantOfShape"):
            return True
        repeats = int(self.onnx.numpy_helper.to_array(self.values[names[-1]]).prod())
        return repeats * (prod(self.values[names[0]].dims) if node.op_type == "Tile" else 1) <= _SMALL

    def _shape(self, name: str, node: Any) -> tuple[int, ...]:
        shape = self.shapes.get(name)
        if shape is None:
            raise InputFileError(
                self.path,
                f"shape of {name}, of operator {node.op_type}, must follow from the inputs, got unknown sizes",
            )
        return shape

    def _read(self, node: Any) -> None:
        """Add a node; what is made of constants needs no shape."""
        if node.op_type in ("SplitToSequence", "SequenceAt"):
            node = self._of_sequence(node)
        self._infer(node)
        inputs = [self.tensors[name] for name in node.input if name in self.tensors][
            : 1 if "Like" in node.op_type else None
        ]
        is_sample = any(one.role == SAMPLE for one in inputs) and node.op_type not in (
            "Shape",
            "Size",
            "ConstantOfShape",
        )
        outputs = [name for name in node.output if name]
        if not is_sample:
            made = [self.shapes.get(name) or (1,) for name in outputs]
            inputs = [] if node.op_type in ("Sin", "Cos", "Shape", "Size", "ConstantOfShape") else inputs
            one = self.graph.add("constant", inputs, made, function=_FUNCTIONS.get(node.op_type, ""))
            for name, tensor in zip(outputs, one.outputs, strict=True):
                is_given = node.op_type == "Constant" and is_square(tensor.shape)
                tensor.is_mask = tensor.is_mask or (tensor.role == CONSTANT and is_given)
                self.tensors[name] = tensor
            return
        if node.op_type in _RECURRENT and self._steps(node):
            return
        kind = _KINDS.get(node.op_type, UNKNOWN)
        if node.op_type == "Gather" and inputs[0].role == WEIGHT:
            kind = "embedding"
        given = {one.name: self.onnx.helper.get_attribute_value(one) for one in node.attribute}
        shapes = [self._shape(name, node) for name in outputs]
        attributes = self._attributes(node, kind, given, inputs)
        if kind in ("convolution", "pool"):
            inputs[0] = self._padded(node, inputs[0], attributes)
        names = node.name.strip("/").rpartition("/")[0].replace("/", ".")
        one = self.graph.add(kind, inputs, shapes, name=names, label=node.op_type, **attributes)
        for name, tensor in zip(outputs, one.outputs, strict=True):
            if self.types.get(name, 1) not in _FLOATS and kind not in ("view", "slice", "expand", "concat", "copy"):
                tensor.role = CONSTANT
            self.tensors[name] = tensor

    def _steps(self, node: Any) -> bool:
        """Add the products of a recurrent layer: of all inputs at once, and of its state a step; False: it is odd."""
        source, *others = (self.tensors.get(name) for name in [*node.input, *[""] * 8][:8])
        weights = [one for one in others[:3] if one is not None and one.role == WEIGHT]
        if source is None or len(weights) < 2 or others[0] is not weights[0] or others[6] is not None:
            return False
        name = node.name.strip("/").replace("/", ".")
        add, batch = partial(self.graph.add, name=name, label=node.op_type), self.graph.batch
        (directions, wide, width), features = weights[1].shape, weights[0].shape[-1]
        count, every, ends = source.size // batch // features, list[Tensor](), list[Tensor]()
        row = add("view", [source], [(batch, count, features)]).output
        for at in range(directions):
            first, second = ([self._part(one, at, place) for one in (weights[place], *weights[2:])] for place in (0, 1))
            gates = add("product", [row, *first], [(batch, count, wide)]).output
            start = others[4] if others[4] is not None and others[4].role == SAMPLE else gates
            state = add("slice", [start], [(batch, width)], axis=-1, start=at).output
            for step in range(count):
                given = add("slice", [gates], [(batch, wide)], axis=1, start=step).output
                made = add("product", [state, *second], [(batch, wide)]).output
                total = add("pointwise", [given, made], [(batch, wide)], function="add").output
                state = add("pointwise", [total], [(batch, wide)], function="tanh").output
                if wide > width:  # gates and what they multiply
                    state = add("pointwise", [state], [(batch, width)], function="glu").output
                every.append(state)
            ends.append(state)
        for name, parts in zip(node.output, (every, ends, ends), strict=False):
            whole = add("concat", parts, [(batch, len(parts) * width)], axis=1).output if len(parts) > 1 else parts[0]
            self.tensors[name] = add("view", [whole], [self.shapes.get(name) or whole.shape]).output
        return True

    def _part(self, weight: Tensor, direction: int, place: int) -> Tensor:
        """Return the parameters of a direction, which have one name in a file with those of others."""
        leaves = weight.parameters()
        self.graph.parameters = [one for one in self.graph.parameters if one not in leaves]
        shape = weight.shape[1:] if len(weight.shape) > 2 else (weight.shape[1] // 2,)
        part = self.parts.setdefault((*leaves, direction, place), Tensor(shape, WEIGHT, name=next(iter(leaves)).name))
        self.graph.repeated.add(part)
        return part

    def _of_sequence(self, node: Any) -> Any:
        """Return a plain Split in place of SplitToSequence, and Identity of one part in place of SequenceAt."""
        make, (source, place) = self.onnx.helper, list(node.input)
        if node.op_type == "SequenceAt":
            return make.make_node("Identity", [f"{source}:{self._numbers(node, 1, [0])[0]}"], node.output, node.name)
        axis = next((one.i for one in node.attribute if one.name == "axis"), 0)
        whole, sizes = self._shape(source, node)[axis], self._numbers(node, 1, [1])
        if not self.values[place].dims:  # one size of all
            sizes = [min(sizes[0], whole - start) for start in range(0, whole, sizes[0])]
            self.values[place] = self.onnx.numpy_helper.from_array(np.array(sizes), place)
            self._note(place, make.make_tensor_type_proto(self.values[place].data_type, [len(sizes)]))
        parts = [f"{node.output[0]}:{at}" for at in range(len(sizes))]
        return make.make_node("Split", [source, place], parts, node.name, axis=axis)

    def _padded(self, node: Any, source: Tensor, attributes: dict[str, Any]) -> Tensor:
        """Return the input with the border that is not the same on both sides as an operator of its own."""
        pads = attributes.pop("pads", [])
        sides = len(source.shape) - 2
        before, after = list(pads[:sides]), list(pads[sides:])
        if before == after:
            attributes["padding"] = before or [0] * sides
            return source
        attributes["padding"] = [0] * sides
        wide = [side + first + last for side, first, last in zip(source.shape[2:], before, after, strict=True)]
        return self.graph.add("copy", [source], [(*source.shape[:2], *wide)], label=f"{node.op_type} padding").output

    def _attributes(self, node: Any, kind: str, given: Mapping[str, Any], inputs: list[Tensor]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if kind == "pointwise":
            found = {"function": _FUNCTIONS[node.op_type]}
        elif kind in ("concat", "slice"):
            is_slice, has_start = node.op_type == "Slice", node.op_type in ("Gather", "Slice")
            found = {
                "axis": given.get("axis", self._numbers(node, 3, [0])[0] if is_slice else 0),
                "start": self._numbers(node, 1, [0])[0] if has_start else 0,
            }
        elif kind == "reduce":
            every = list(range(len(inputs[0].shape)))
            function = "mean" if node.op_type == "ReduceMean" else "sum"
            found = {"axes": list(given.get("axes", self._numbers(node, 1, every))), "function": function}
        elif kind in ("convolution", "pool"):
            found = self._window(node, kind, given, inputs)
        elif kind == "dropout":
            found = {"rate": float(given.get("ratio", 0.5))}
        elif kind == "attention":
            found = {"causal": bool(given.get("is_causal", 0)), "dropout": 0.0, "fused": True}
        elif kind == "group_norm":
            found = {"groups": given.get("num_groups", 1)}
        return found

    def _window(self, node: Any, kind: str, given: Mapping[str, Any], inputs: list[Tensor]) -> dict[str, Any]:
        sides = len(inputs[0].shape) - 2
        if node.op_type.startswith("Global"):
            return {"mode": "max" if "Max" in node.op_type else "average", "resized": True}
        ones = [1] * sides
        window = list(given.get("kernel_shape", inputs[1].shape[2:] if kind == "convolution" else ones))
        stride, dilation = list(given.get("strides", ones)), list(given.get("dilations", ones))
        pads = list(given.get("pads", [0] * (2 * sides)))
        if given.get("auto_pad", b"NOTSET") in (b"SAME_UPPER", b"SAME_LOWER"):
            output = self._shape(node.output[0], node)[2:]
            rows = zip(output, stride, window, dilation, inputs[0].shape[2:], strict=True)
            missing = [
                max(0, (out - 1) * step + (side - 1) * apart + 1 - size) for out, step, side, apart, size in rows
            ]
            pads = [one // 2 for one in missing] + [one - one // 2 for one in missing]
        common = {"stride": stride, "pads": pads}
        if kind == "pool":
            mode = "max" if node.op_type == "MaxPool" else "average"
            return {**common, "mode": mode, "window": window, "ceil": bool(given.get("ceil_mode", 0))}
        is_transposed = node.op_type == "ConvTranspose"
        return {**common, "dilation": dilation, "groups": given.get("group", 1), "transposed": is_transposed}

    def _numbers(self, node: Any, place: int, default: list[int]) -> list[int]:
        """Return whole numbers that an input holds, where the file has them."""
        name = node.input[place] if len(node.input) > place else ""
        if name not in self.values:
            return default
        return [int(one) for one in self.onnx.numpy_helper.to_array(self.values[name]).reshape(-1)] or default
