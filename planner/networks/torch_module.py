"""PyTorch modules that a factory returns, run on the meta device: shapes alone, no weights, no data.

Operators are those that PyTorch dispatches (ATen), but for a few functions that are made of several: attention,
dropout and normalisation by the root mean square.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from planner import errors
from planner.errors import NOTHING, InputFileError, MissingPackageError, ParameterError, PlannerError, UsageError
from planner.networks.operators import CONSTANT, SAMPLE, UNKNOWN, WEIGHT, Graph, Tensor, is_square

BATCH = 2
"""Samples: normalisation over a batch needs two."""
_SHAPES = re.compile(r"[1-9][0-9]*(x[1-9][0-9]*){0,2}([+][1-9][0-9]*(x[1-9][0-9]*){0,2})*")
_SHAPE_RULE = "sizes of one sample, such as 3x224x224, or 512 of tokens; of several inputs 512+512"

_Read = Callable[[list[Any], Mapping[str, Any]], Mapping[str, Any]]
_VIEWS = (
    "view", "_unsafe_view", "reshape", "_reshape_alias", "t", "transpose", "permute", "squeeze", "unsqueeze", "detach",
    "alias", "lift_fresh", "view_as_complex", "view_as_real", "flatten", "unflatten", "movedim",
    "as_strided",
)  # fmt: skip
_MOVED = ("clone", "contiguous", "_to_copy", "to", "copy")
_SPLITS = ("split", "split_with_sizes", "chunk", "unsafe_split", "unsafe_split_with_sizes", "unsafe_chunk")
_SLICES = ("slice", "select", "narrow", "unbind", *_SPLITS)
_ORDERS = ("tril", "triu", "le", "lt", "ge", "gt")
_ADDS = ("add", "sub", "rsub", "_foreach_add")
_PLAIN = {
    "mul": "mul", "div": "div", "relu": "relu", "hardtanh": "relu", "relu6": "relu", "clamp": "relu",
    "clamp_min": "relu", "leaky_relu": "leaky_relu", "tanh": "tanh", "sigmoid": "sigmoid", "gelu": "gelu",
    "silu": "silu", "hardswish": "hard_swish", "hardsigmoid": "hard_sigmoid", "elu": "elu", "celu": "elu",
    "softplus": "softplus", "mish": "mish", "log_sigmoid_forward": "softplus", "threshold": "relu", "glu": "glu",
    "_prelu_kernel": "prelu", "prelu": "prelu", "masked_fill": "mask", "where": "mask",
}  # fmt: skip
_OTHERS = (
    "pow", "exp", "log", "sqrt", "rsqrt", "erf", "neg", "abs", "sin", "cos", "reciprocal", "maximum", "minimum", "sign",
    "square", "exp2", "log1p", "expm1", "floor", "round", "logical_not", "logical_and", "logical_or", "bitwise_and",
    "bitwise_or", "bitwise_not", "isnan", "isinf", "remainder", "atan2", "addcmul", "lerp", "nan_to_num", "fill",
)  # fmt: skip
_MADE = (
    "zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like", "new_zeros", "new_ones",
    "new_empty", "new_full", "new_empty_strided",
)  # fmt: skip
"""Operators whose results depend on the shape of their input alone."""
_REDUCTIONS = ("mean", "sum", "amax", "max", "amin", "min", "var", "var_mean", "std", "linalg_vector_norm", "cumsum")
_COPIES = (
    "constant_pad_nd", "roll", "flip", "index", "index_select", "gather", "reflection_pad2d", "replication_pad2d",
    "pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "im2col", "unfold", "col2im", "grid_sampler_2d",
    "stack", "index_put", "slice_scatter", "select_scatter", "scatter", "tril", "triu", "pad", "diagonal",
)  # fmt: skip
_OF_ATTENTION = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
_OF_TOKENS = ("view", "slice", "expand", "concat", "copy")
"""Kinds that leave whole numbers tokens."""
_KINDS: Mapping[str, str] = {
    **dict.fromkeys((*_VIEWS, *_MOVED), "view"),
    **dict.fromkeys(_SLICES, "slice"),
    **dict.fromkeys(("expand", "repeat", "repeat_interleave", "expand_as", "broadcast_to"), "expand"),
    **dict.fromkeys(("cat", "concat"), "concat"),
    **dict.fromkeys((*_ADDS, *_PLAIN, *_OTHERS, *_ORDERS[2:], "eq", "ne"), "pointwise"),
    **dict.fromkeys(_REDUCTIONS, "reduce"),
    **dict.fromkeys(("mm", "bmm", "addmm", "baddbmm", "linear", "matmul", "addmv", "mv", "dot"), "product"),
    **dict.fromkeys(("convolution", "_convolution", "convolution_overrideable", "mkldnn_convolution"), "convolution"),
    "embedding": "embedding",
    **dict.fromkeys(("_softmax", "softmax", "_safe_softmax"), "softmax"),
    "_log_softmax": "loss",
    **dict.fromkeys(("native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm", "batch_norm"), "batch_norm"),
    **dict.fromkeys(("native_group_norm", "group_norm"), "group_norm"),
    **dict.fromkeys(("native_layer_norm", "layer_norm"), "layer_norm"),
    **dict.fromkeys(("_fused_rms_norm", "rms_norm"), "rms_norm"),
    **dict.fromkeys(("max_pool2d_with_indices", "max_pool2d", "avg_pool2d"), "pool"),
    **dict.fromkeys(
        ("_adaptive_avg_pool2d", "adaptive_avg_pool2d", "adaptive_max_pool2d", "_adaptive_avg_pool1d"), "pool"
    ),
    **dict.fromkeys(
        ("upsample_nearest2d", "upsample_bilinear2d", "upsample_bicubic2d", "_upsample_nearest_exact2d",
         "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"), "upsample",
    ),
    "attention": "attention",
    "dropout": "dropout",
    "native_dropout": "dropout",
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), "view"),
    **dict.fromkeys(_COPIES, "copy"),
}  # fmt: skip


def module_graph(path: str, factory: str, inputs: str) -> Graph:
    """Return the operators of the module that ``factory`` of a file or a Python module returns.

    ``inputs``: the sizes of a sample; empty: the factory returns example inputs beside the module. InputFileError where
    there is no such factory, or it raises; ParameterError where the sizes are missing or do not follow.
    """
    torch = _torch()
    what = f"{path}:{factory}"
    shapes = check_shapes(inputs, f"argument input of {what}") if inputs else []
    make = _factory(path, factory)
    with _failing(path, f"{factory} must build on the meta device, without weights or data"), torch.device("meta"):
        made = make() if callable(make) and not isinstance(make, torch.nn.Module) else make
    module, examples = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(module, torch.nn.Module):
        raise InputFileError(path, f"{factory} must return a torch.nn.Module, got {type(module).__name__}")
    if shapes:
        # Numbers, and where there is one size each, tokens as well.
        dtypes = (torch.float32, torch.int64) if all(len(shape) == 1 for shape in shapes) else (torch.float32,)
        trials: list[Any] = [
            tuple(torch.empty((BATCH, *shape), dtype=dtype, device="meta") for shape in shapes) for dtype in dtypes
        ]
    elif examples is None:
        remedy = f"type {what}:input=3x224x224, or return (module, example inputs)"
        raise ParameterError(f"argument input of {what}", f"given ({_SHAPE_RULE})", NOTHING, remedy)
    else:
        trials = [examples if isinstance(examples, tuple | list | dict) else (examples,)]
    module = module.to("meta")
    ways = [(trial, *way) for way in ((True, False), (True, True), (False, True)) for trial in trials]
    for trial, is_training, is_compiling in ways[:-1]:
        with contextlib.suppress(Exception, SystemExit), contextlib.redirect_stdout(sys.stderr):
            return _traced(torch, module.train(is_training), trial, what, is_compiling=is_compiling)
    with _failing(path, f"{factory} must run on the meta device, without weights or data"):
        return _traced(torch, module.eval(), trials[-1], what, is_compiling=True)


def _torch() -> Any:
    try:
        import torch  # noqa: PLC0415 - seconds, and not everyone has it
    except ImportError:
        raise MissingPackageError("a PyTorch module is read by the package torch; pip install torch") from None
    return torch


def factories_of(text: str, path: str) -> str:
    """Return the names of functions and classes that a Python file defines; it is not run."""
    try:
        parts = ast.parse(text).body
    except (SyntaxError, ValueError):
        raise InputFileError(path, "file must be Python, got other text") from None
    made = (one.name for one in parts if isinstance(one, ast.FunctionDef | ast.ClassDef) and one.name[0] != "_")
    return ", ".join(made) or "no function at all"


def _factory(path: str, name: str) -> Any:
    """Return an attribute of a file's, or of a module's, namespace; this runs the user's code."""
    if path.endswith(".py"):
        file = Path(path)
        if not file.is_file():
            raise InputFileError(path, "file must exist, got none")
        spec = importlib.util.spec_from_file_location(file.stem, file)
        assert spec is not None  # noqa: S101 - of a .py file there is one
        assert spec.loader is not None  # noqa: S101
        module = importlib.util.module_from_spec(spec)
        sys.modules.setdefault(file.stem, module)
        folder = str(file.parent.resolve())
        with _failing(path, "file must be Python that can be imported"), _on_path(folder):
            spec.loader.exec_module(module)
    else:
        with _on_path(str(Path.cwd())):
            if path.partition(".")[0] not in sys.modules and importlib.util.find_spec(path.partition(".")[0]) is None:
                rule = "a bundled network, a file, or a Python module that can be found"
                raise ParameterError("--network", rule, f"{path}:{name}")
            with _failing(path, "name must be a Python module that can be imported"):
                module = importlib.import_module(path)
    if not hasattr(module, name):
        own = [key for key, one in vars(module).items() if getattr(one, "__module__", "") == module.__name__]
        near = list(errors.nearest_names(name, own)) or [key for key in own if not key.startswith("_")]
        known = ", ".join(near[: errors.MOST_OFFERED]) + ", ..." * (len(near) > errors.MOST_OFFERED)
        raise InputFileError(path, f"file must define the factory {name}, got {known or 'no function at all'}")
    return getattr(module, name)


@contextlib.contextmanager
def _on_path(folder: str) -> Iterator[None]:
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


@contextlib.contextmanager
def _failing(path: str, rule: str) -> Iterator[None]:
    """Give what the user's code raises as one sentence, and what it prints to standard error."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except PlannerError:
        raise
    except (Exception, SystemExit) as error:
        first = str(error).strip().partition("\n")[0]
        words = f"{type(error).__name__}: {first}" if first else type(error).__name__
        raise InputFileError(path, f"{rule}, got {words[:200]}") from error


def check_shapes(text: str, what: str) -> list[tuple[int, ...]]:
    """Return the sizes of a sample of every input, as typed; ParameterError where they are none."""
    if not _SHAPES.fullmatch(text):
        raise ParameterError(what, _SHAPE_RULE, text)
    return [tuple(map(int, one.split("x"))) for one in text.split("+")]


def _traced(torch: Any, module: Any, examples: Any, what: str, *, is_compiling: bool) -> Graph:
    """Run a module on examples and return its operators; told that a compiler runs it, it looks at less data."""
    from torch.utils._pytree import tree_leaves, tree_map  # noqa: PLC0415

    examples = tree_map(lambda one: one.to("meta") if isinstance(one, torch.Tensor) else one, examples)
    args, kwargs = ((), examples) if isinstance(examples, dict) else (tuple(examples), {})
    tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
    if not tensors or not tensors[0].dim():
        raise ParameterError(f"example inputs of {what}", "at least one tensor with a batch axis", len(tensors))
    graph = Graph(_name(what), int(tensors[0].shape[0]), [], [])
    trace = _Trace(torch, graph)
    for number, one in enumerate(tensors):
        is_ignored = one.dtype == torch.bool
        tensor = trace.note(one, Tensor(tuple(one.shape), CONSTANT if is_ignored else SAMPLE, name=f"input{number}"))
        graph.inputs += [] if is_ignored else [tensor]
    for name, one in module.named_parameters():
        leaf = Tensor(tuple(one.shape), WEIGHT, name=name, is_frozen=not one.requires_grad)
        graph.parameters.append(trace.note(one, leaf))
    with (
        torch.device("meta"),
        torch.no_grad(),
        _without_devices(torch, is_compiling=is_compiling),
        trace.recording(module),
    ):
        result = module(*args, **kwargs)
    outputs = [trace.tensors[id(one)][1] for one in tree_leaves(_leaves(result)) if id(one) in trace.tensors]
    samples = [one for one in outputs if one.role == SAMPLE and one.maker is not None]
    if not samples:
        raise UsageError(f"{what} must return a tensor that depends on its input, got {type(result).__name__}")
    if not module.training:
        graph.notes.append("The model was read as it is evaluated, as training looks at data: without dropout.")
    graph.outputs = samples[:1]
    used = {leaf for one in graph.needed() for tensor in one.inputs for leaf in tensor.parameters()}
    for output in samples[1:]:
        mine = {leaf for one in graph.needed(output) for tensor in one.inputs for leaf in tensor.parameters()}
        if mine - used:
            graph.outputs.append(output)
            used |= mine
    return graph


@contextlib.contextmanager
def _without_devices(torch: Any, *, is_compiling: bool) -> Iterator[None]:
    """Take autocasting for the meta device, which has none, as that of the CPU; say whether a compiler looks on."""
    autocast, compiler = torch.amp.autocast_mode.autocast, torch.compiler
    started, was_compiling = autocast.__init__, compiler.is_compiling

    def start(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        started(self, "cpu" if device_type == "meta" else device_type, *args, **kwargs)

    autocast.__init__ = start
    if is_compiling:
        compiler.is_compiling = lambda: True
    try:
        yield
    finally:
        autocast.__init__, compiler.is_compiling = started, was_compiling


def _leaves(result: Any) -> Any:
    """Return what a module returns as plain containers: outputs of Hugging Face are mappings of their own."""
    if isinstance(result, Mapping):
        return [_leaves(one) for one in result.values()]
    if isinstance(result, tuple | list):
        return [_leaves(one) for one in result]
    return result


def _name(what: str) -> str:
    path, _, factory = what.rpartition(":")
    return f"{Path(path).stem if path.endswith('.py') else path}.{factory}"


class _Trace:
    """Records the operators of a run; tensors are told by identity, and kept so that it stays theirs."""

    def __init__(self, torch: Any, graph: Graph) -> None:
        self.torch, self.graph = torch, graph
        self.tensors: dict[int, tuple[Any, Tensor]] = {}
        self.path: list[str] = []
        self.is_paused = False

    def note(self, value: Any, tensor: Tensor) -> Tensor:
        self.tensors[id(value)] = value, tensor
        return tensor

    def known(self, value: Any) -> Tensor:
        """Return the record of a tensor; one that nothing made is a constant."""
        if id(value) not in self.tensors:
            shape = tuple(value.shape)
            self.note(value, Tensor(shape, is_mask=is_square(shape)))
        return self.tensors[id(value)][1]

    def add(self, label: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        """Record one operator of a result that is a tensor, or several."""
        from torch.utils._pytree import tree_leaves  # noqa: PLC0415

        base = label.removeprefix("aten.").partition(".")[0]
        is_inplace = base.endswith("_") and not base.startswith("__")
        base = base.rstrip("_") if is_inplace else base
        leaves = [one for one in tree_leaves((args, kwargs)) if isinstance(one, self.torch.Tensor)]
        values = [one for one in tree_leaves(result) if isinstance(one, self.torch.Tensor)]
        if not values:
            return
        kind = _KINDS.get(base, UNKNOWN)
        inputs = [self.known(one) for one in leaves] if base not in _MADE else []
        attributes = _attributes(base, args, kwargs)
        one = self.graph.add(
            kind, inputs, [tuple(value.shape) for value in values], name=self.path[-1] if self.path else "",
            label=label.rpartition(".")[0] if label.count(".") > 1 else label, **attributes,
        )  # fmt: skip
        for value, tensor in zip(values, one.outputs, strict=True):
            is_number = value.is_floating_point() or value.is_complex() or kind in _OF_TOKENS
            if not is_number and tensor.role == SAMPLE:  # made of tokens: which of them count, where they stand
                tensor.role = CONSTANT
            self.note(value, tensor)

    @contextlib.contextmanager
    def recording(self, module: Any) -> Iterator[None]:
        """Record what runs inside: every dispatched operator, and some functions as one."""
        from torch.utils._python_dispatch import TorchDispatchMode  # noqa: PLC0415

        trace, functional = self, self.torch.nn.functional

        class Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
            def __torch_dispatch__(self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
                result = func(*args, **(kwargs or {}))
                if not trace.is_paused:
                    trace.add(str(func), args, kwargs or {}, result)
                return result

        def whole(label: str, original: Callable[..., Any]) -> Callable[..., Any]:
            names = _OF_ATTENTION if label == "attention" else tuple(inspect.signature(original).parameters)

            def recorded(*args: Any, **kwargs: Any) -> Any:
                if trace.is_paused:
                    return original(*args, **kwargs)
                trace.is_paused = True
                try:
                    result = original(*args, **kwargs)
                finally:
                    trace.is_paused = False
                given = dict(zip(names, args, strict=False)) | kwargs
                trace.add(label, (), given, result)
                return result

            return recorded

        wholes = {"scaled_dot_product_attention": "attention", "dropout": "dropout", "rms_norm": "rms_norm"}
        originals = {name: getattr(functional, name) for name in wholes}
        places = {one: name for name, one in module.named_modules()}

        def left(*_: Any) -> None:
            trace.path.pop()

        hooks = [one.register_forward_pre_hook(lambda one, _: trace.path.append(places[one])) for one in places]
        hooks += [one.register_forward_hook(left) for one in places]
        try:
            for name, label in wholes.items():
                setattr(functional, name, whole(label, originals[name]))
            with Mode():  # type: ignore[no-untyped-call]
                yield
        finally:
            for name, original in originals.items():
                setattr(functional, name, original)
            for hook in hooks:
                hook.remove()


def _attributes(base: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the kind of an operator says besides tensors."""
    if base in _PLAIN or base in _OTHERS or base in _ORDERS or base in _ADDS:
        return {"function": "order" if base in _ORDERS else "add" if base in _ADDS else _PLAIN.get(base, base)}
    if base in _MOVED:
        return {"moved": True}
    if base in _SLICES:
        return {"axis": _at(args, 1 + (base in _SPLITS), 0), "start": _at(args, 2, 0)}
    if base in _REDUCTIONS:
        axes = _at(args, 1, None)
        return {"axes": [axes] if isinstance(axes, int) else axes, "function": base}
    return _of_kind(base, args, kwargs)


def _of_kind(base: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if base in ("cat", "concat"):
        found = {"axis": _at(args, 1, kwargs.get("dim", 0))}
    elif "convolution" in base:
        names = ("stride", "padding", "dilation", "transposed", "groups")
        found = dict(zip(names, (*args[3:7], args[8]), strict=True))
    elif base in ("max_pool2d_with_indices", "max_pool2d", "avg_pool2d"):
        mode, window = ("average" if base == "avg_pool2d" else "max"), args[1]
        found = {"mode": mode, "window": window, "stride": _at(args, 2, []) or window, "padding": _at(args, 3, 0)}
        found["ceil"] = bool(_at(args, 4 if mode == "average" else 5, default=False))
    elif "adaptive" in base:
        found = {"mode": "max" if "max" in base else "average", "resized": True}
    elif "dropout" in base:
        found = {"rate": float(kwargs.get("p", 0.5)) * bool(kwargs.get("training", True))}
    elif base == "attention":
        is_causal, rate = bool(kwargs.get("is_causal", False)), float(kwargs.get("dropout_p", 0.0))
        found = {"causal": is_causal, "dropout": rate, "fused": True}
    elif base == "native_group_norm":
        found = {"groups": args[6]}
    return found


def _at(args: tuple[Any, ...], place: int, default: Any) -> Any:
    return args[place] if len(args) > place else default
