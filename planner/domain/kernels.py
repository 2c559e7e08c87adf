"""Kernel calls: what one training step asks of a device, as arrays.

A call's *work* is a handful of whole numbers, named as in a samples file; a feature map of :mod:`planner.costs`
turns them into times. The columns of each kind:

=================  =====================================================================================
kind               work columns
=================  =====================================================================================
gemm               m, n, k, batch: ``batch`` products (m x k)·(k x n)
convolution        images, in_c, in_h, in_w, out_c, k_h, k_w, stride_h, stride_w, pad_h, pad_w, groups
attention          batch, heads of all samples; queries, keys; width, features of a head; causal, 1 where query i
                   sees only the keys up to i, else 0: fused, without scores in memory
all others         elements; traffic, elements of the working precision read and written;
                   fixed_bytes, bytes moved whatever the precision (indices, masks, fp32 statistics)
... of ROW_KINDS   rows besides, each of elements / rows, that a sum is taken over; 0 where not known
=================  =====================================================================================

FLOP of a product counts a multiply-add as 2.

Sums over rows have no kind of their own, as a training step makes none alone: the gradient of a bias is summed in the
call of its layer's gradient of weights (kind ``bias`` where that is not measured with it, as of convolutions on a GPU),
that of a table of positions in ``embedding`` backward, and global pooling and normalisation are sums themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from planner.domain.arrays import FloatArray, IntArray, frozen_map
from planner.domain.keys import ALWAYS, Key
from planner.errors import ParameterError

FORWARD, BACKWARD_DATA, BACKWARD_WEIGHT, UPDATE = "forward", "backward_data", "backward_weight", "update"
DIRECTIONS = (FORWARD, BACKWARD_DATA, BACKWARD_WEIGHT, UPDATE)

GEMM_COLUMNS = ("m", "n", "k", "batch")
CONVOLUTION_COLUMNS = (
    "images", "in_c", "in_h", "in_w", "out_c", "k_h", "k_w", "stride_h", "stride_w", "pad_h", "pad_w", "groups",
)  # fmt: skip
ATTENTION_COLUMNS = ("batch", "queries", "keys", "width", "causal")
TRAFFIC_COLUMNS = ("elements", "traffic", "fixed_bytes")
ROW_COLUMNS = (*TRAFFIC_COLUMNS, "rows")

LINEAR_BIAS = "linear_bias"
"""Biases of linear layers: told apart from those of convolutions where they alone are part of other calls."""
TRAFFIC_KINDS = (
    "im2col", "col2im", "bias", LINEAR_BIAS, "activation", "gelu", "max_pool", "average_pool", "batch_norm",
    "layer_norm", "rms_norm", "lrn", "dropout", "swiglu", "rotary", "embedding", "add", "concat", "upsample", "softmax",
    "copy", "update",
)  # fmt: skip
PRODUCT_KINDS = ("convolution", "gemm")
ATTENTION = "attention"
"""Fused: its kernels are written for one generation of GPUs each, and use what the next can do once they are again."""
MATRIX_KINDS = (*PRODUCT_KINDS, ATTENTION)
"""Kinds whose work is not bytes alone: their speed depends on algorithms, layouts and clocks."""
CLASSES = ("convolution", "product", "traffic")
"""Of kernels, by what whole steps scale their times: convolutions, products with attention, and all others."""


def class_of(kind: str) -> int:
    """Return the place of a kind's class in CLASSES.

    >>> class_of("convolution"), class_of("gemm"), class_of("attention"), class_of("update")
    (0, 1, 1, 2)
    """
    return 0 if kind == "convolution" else 1 if kind in MATRIX_KINDS else 2


FP32_KINDS = ("embedding", "update")
"""Kinds that mixed precision of 16 bits leaves in fp32."""
KINDS = ("gemm", "convolution", "attention", *TRAFFIC_KINDS)
ROW_KINDS = ("layer_norm", "rms_norm", "softmax")
COSTLY_ACTIVATIONS: Mapping[str, str] = frozen_map({"gelu": "gelu"})
"""Function of an activation -> its own kind of kernel, where its arithmetic can cost more than its bytes."""
OF_LAYERS: Mapping[str, str] = frozen_map({"rms_norm": "rms_norm", "gated_activation": "swiglu", "rotary": "rotary"})
"""Kind of layer -> its own kind of kernel, where calls of one that is older serve it."""
SERVED_BY: Mapping[str, str] = frozen_map(
    dict.fromkeys(COSTLY_ACTIVATIONS.values(), "activation")
    | {LINEAR_BIAS: "bias", "rms_norm": "layer_norm", "swiglu": "activation", "rotary": "activation"}
)
"""Kind that some calls of another are -> the other, as which a device takes them for which it was not measured."""
WORK_COLUMNS: Mapping[str, tuple[str, ...]] = frozen_map(
    {"gemm": GEMM_COLUMNS, "convolution": CONVOLUTION_COLUMNS, "attention": ATTENTION_COLUMNS}
    | dict.fromkeys(TRAFFIC_KINDS, TRAFFIC_COLUMNS)
    | dict.fromkeys(ROW_KINDS, ROW_COLUMNS)
)


OF_BANDWIDTH = (("copy", FORWARD),)
"""Kind and direction of calls of few layers, which a data sheet's bandwidth serves where they were not timed."""


def is_that_of_fp32(kind: str, precision: str) -> bool:
    """Tell whether a network's call is the same in a precision as in fp32: TF32 is fp32 but for matrix kinds."""
    return kind not in MATRIX_KINDS if precision == "tf32" else precision != "fp32" and kind in FP32_KINDS


def convolution_output(work: Mapping[str, int]) -> tuple[int, int]:
    """Return height and width of a convolution's output: floor((x + 2p - c) / s) + 1."""
    height, width = (
        (work[f"in_{axis}"] + 2 * work[f"pad_{axis}"] - work[f"k_{axis}"]) // work[f"stride_{axis}"] + 1
        for axis in "hw"
    )
    return height, width


@dataclass(frozen=True, slots=True)
class KernelCalls:
    """Calls of one kind and direction.

    Attributes
    ----------
    direction : the only backward pass of a kind without weights is ``backward_data``, but the weight gradient repeats
        im2col
    layer : ndarray of int, shape (k,), position of the first layer that makes the call, in ``Network.layers``; equal
        layers make it too
    count : ndarray of int, shape (k,), how often all of them make it; (s, k) where that depends on the sub-batch (one
        image at a time); of float where several layers share a call
    work : mapping of column to ndarray of int, each broadcasting to (s, k), for s sub-batches; a column that does not
        depend on the sub-batch may have shape (k,) or (1, k)
    looked_up : mapping of column to ndarray, where the calls stand in a table of measured ones, the sub-batch, and the
        scaling curve of a fit; empty: they are in none
    operations : ndarray of int or float, shape (k,), optional, how many operations of the framework make them, where
        one launches several kernels; None: each makes one
    launches : ndarray of int or float, shape (k,), optional, kernels that they launch beside the first of each call
    """

    kind: str
    direction: str
    layer: IntArray
    count: IntArray | FloatArray
    work: Mapping[str, IntArray | FloatArray]
    looked_up: Mapping[str, IntArray | FloatArray] = field(default_factory=dict)
    operations: IntArray | FloatArray | None = None
    launches: IntArray | FloatArray | None = None

    def __post_init__(self) -> None:
        if self.kind not in WORK_COLUMNS:
            raise ParameterError("kernel kind", "one of " + ", ".join(KINDS), self.kind)
        if self.direction not in DIRECTIONS:
            raise ParameterError("kernel direction", "one of " + ", ".join(DIRECTIONS), self.direction)
        if tuple(self.work) != WORK_COLUMNS[self.kind]:
            rule = "the columns " + ", ".join(WORK_COLUMNS[self.kind])
            raise ParameterError(f"work of {self.kind}", rule, ", ".join(self.work))
        object.__setattr__(self, "work", frozen_map(self.work))
        object.__setattr__(self, "looked_up", frozen_map(self.looked_up))


_WORK: Mapping[str, int] = {"least": 0, "most": 10**18}


@dataclass(frozen=True, slots=True)
class Work:
    """Work of one sample; parameters do not depend on samples."""

    parameters: Annotated[int, Key("weights", **_WORK)]
    trained: Annotated[
        int, Key("those of them that are trained; absent: all are", name="trained_parameters", absent=None, **_WORK)
    ]
    forward_mac: int
    training_flop: Annotated[int, Key("of products, forward and backward, a sample", **_WORK)]

    @property
    def forward_flop(self) -> int:
        """Of products: two a multiply-add."""
        return 2 * self.forward_mac


@dataclass(frozen=True, slots=True)
class WorkTotals(Work):
    """Totals of a network."""

    kernel_calls: Annotated[int, Key("kernel calls of a step", **_WORK)]


@dataclass(frozen=True, slots=True)
class LayerWork(Work):
    """One layer of a network."""

    name: str
    kind: str
    shape: Annotated[tuple[int, ...], Key("shape of its output of one sample", name="output")]


@dataclass(frozen=True, slots=True)
class KernelRow:
    """Calls of one layer and those like it, in one direction; 0 and empty: no peak rate is known."""

    kind: Annotated[str, Key("of kernel")]
    direction: Annotated[str, Key("pass")]
    precision: Annotated[str, Key("that it computes in")]
    layer: Annotated[str, Key("the first that makes the call")]
    shape: Annotated[str, Key("sizes in words")]
    calls: Annotated[float, Key("how often it is made; what follows is of all of them")]
    flop: Annotated[float, Key("two a multiply-add")]
    bytes: Annotated[float, Key("read and written, each tensor once")]
    seconds: Annotated[float, Key("time", absent=ALWAYS)] = 0.0
    roof_s: Annotated[float, Key("least time by the roofline", absent=ALWAYS)] = 0.0
    bound: Annotated[str, Key("compute, memory or launch", absent=ALWAYS)] = ""
