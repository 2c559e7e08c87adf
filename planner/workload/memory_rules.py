"""What the memory of all plans is counted by, but the network: bytes, contexts, micro-batches in flight.

Micro-batches that a pipeline stage has run forward and not yet backward: what it keeps activations of.

Counted by schedule: GPipe (arXiv:1811.06965), 1F1B and PipeDream's without a flush (arXiv:1806.03377), interleaved as
Megatron runs it (arXiv:2104.04473), zero-bubble (arXiv:2401.10241).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from planner.domain.arrays import FloatArray, IntArray, check_not_negative, frozen_map
from planner.domain.axes import RANK_ORDER, SCHEDULES
from planner.domain.configuration import MODES, OPTIMIZERS, Configurations
from planner.domain.framework import GENERIC, LOSSES, Framework
from planner.domain.precision import precision_named
from planner.domain.split import WEIGHTS_SHARDED
from planner.errors import ParameterError, UnknownNameError
from planner.numbers import constant, constants
from planner.workload.calls import CONVOLUTIONS, narrow_layers
from planner.workload.rank_sizes import SizeRules

_NO_FLUSH = SCHEDULES.index("no-flush")


def live_micro_batches(
    stage: IntArray | int,
    micro_batches: IntArray | int,
    pipeline: IntArray | int,
    virtual_stages: IntArray | int,
    schedule: IntArray | int,
) -> FloatArray:
    """Return the most micro-batches alive at a time, as if each had passed all layers of the stage.

    gpipe m; 1f1b min(m, p - s); interleaved min(m·v, 2(p - s - 1) + (v - 1)p + 1) / v, as each of v chunks has 1/v of
    the layers; zero-bubble at most min(m, p) at every stage, with the inputs that wait for gradients of weights;
    zero-bubble-h2 min(m, 2p - 1) and zero-bubble-v min(m, p) likewise; no-flush p - s, of steps that follow each other.
    One stage alone keeps one, and one chunk a stage is 1f1b.

    ``stage``: s, from 0; ``micro_batches``: m a step; ``pipeline``: p stages, of v ``virtual_stages`` each;
    ``schedule``: positions in :data:`planner.domain.axes.SCHEDULES`. Of the shape that the arguments broadcast to.
    """
    s, m, p, v = (np.asarray(each, dtype=np.float64) for each in (stage, micro_batches, pipeline, virtual_stages))

    def interleaved() -> FloatArray:
        chunks = np.minimum(m * v, 2 * (p - s - 1) + (v - 1) * p + 1)
        return np.where(v > 1, chunks / v, np.minimum(m, p - s))

    live = {
        "gpipe": lambda: m,
        "interleaved": interleaved,
        "zero-bubble": lambda: np.minimum(m, p),
        "zero-bubble-h2": lambda: np.minimum(m, 2 * p - 1),
        "zero-bubble-v": lambda: np.minimum(m, p),
        "no-flush": lambda: p - s,
    }
    return _by_schedule(p, schedule, live, np.minimum(m, p - s))


def live_in_first_chunk(
    micro_batches: IntArray | int, pipeline: IntArray | int, virtual_stages: IntArray | int, schedule: IntArray | int
) -> FloatArray:
    """Return the most micro-batches alive in the first chunk of the first stage, which keep what embedding needs.

    As :func:`live_micro_batches`, but the interleaved schedule has brought 2p through it before the first of them comes
    back, and zero-bubble-v 2p - 1. Parameters are as there.
    """
    m, p, v = (np.asarray(each, dtype=np.float64) for each in (micro_batches, pipeline, virtual_stages))
    live = {
        "gpipe": lambda: m,
        "interleaved": lambda: np.minimum(m, np.where(v > 1, 2 * p, p)),
        "zero-bubble-h2": lambda: np.minimum(m, 2 * p - 1),
        "zero-bubble-v": lambda: np.minimum(m, 2 * p - 1),
        "no-flush": lambda: p,
    }
    return _by_schedule(p, schedule, live, np.minimum(m, p))


def live_in_last_chunk(micro_batches: IntArray | int, pipeline: IntArray | int, schedule: IntArray | int) -> FloatArray:
    """Return the most micro-batches alive in the last chunk, which keep what logits need.

    Each goes back before the next comes, but with gpipe, and where inputs wait for gradients of weights. Parameters are
    those of :func:`live_micro_batches`.
    """
    m, p = (np.asarray(each, dtype=np.float64) for each in (micro_batches, pipeline))
    live = {
        "gpipe": lambda: m,
        "zero-bubble": lambda: np.minimum(m, p),
        "zero-bubble-h2": lambda: np.minimum(m, 2 * p - 1),
    }
    return _by_schedule(p, schedule, live, np.ones(np.broadcast_shapes(m.shape, p.shape)))


def weight_versions(stage: IntArray | int, plans: Configurations) -> IntArray:
    """Return how many versions of its weights a stage keeps: p - s without a flush, else 1.

    A micro-batch goes back with the weights that it went forward with, which p - s - 1 others have updated by then:
    so many updates its gradients are late.
    """
    return np.where(plans.schedule == _NO_FLUSH, plans.pipeline_parallel - np.asarray(stage), 1)


def mean_staleness(plans: Configurations) -> FloatArray:
    """Return by how many updates gradients are late, in the mean over stages: (p - 1) / 2 without a flush, else 0."""
    return (weight_versions(0, plans) - 1) / 2


def _by_schedule(
    p: FloatArray, schedule: IntArray | int, live: Mapping[str, Callable[[], FloatArray]], otherwise: FloatArray
) -> FloatArray:
    """Return what schedules have alive, of which only those that occur are worked out; a single stage has one alive."""
    result = otherwise
    for code in np.flatnonzero(np.bincount(np.ravel(schedule))).tolist():
        if SCHEDULES[code] in live:
            result = np.where(np.equal(schedule, code), live[SCHEDULES[code]](), result)
    return np.where(p > 1, result, 1.0)


ASSUMED_CONTEXT_BYTES = constants("memory.context_bytes")
"""What a context with its libraries takes of a device before the first tensor, by kind of device (docs/numbers.md)."""
ASSUMED_COMMUNICATOR_BYTES = constants("memory.communicator_bytes")
"""What a group of ranks that send to each other takes of each, likewise."""
ASSUMED_MARGIN = constant("memory.margin")
"""Of what tensors take: what the allocator loses in pieces (docs/numbers.md)."""
_LOSS_BYTES = ((0, 4, 0, 12, 0), (0, 4, 1, 8, 0), (1, 0, 1, 0, 0), (0, 4, 0, 12, 4), (1, 0, 2, 0, 0))
LOSS_BYTES = frozen_map(dict(zip(LOSSES, _LOSS_BYTES, strict=True)))
"""Loss -> logits that a micro-batch keeps, of the working precision and in bytes of fp32, and their peak likewise; and
how much more that is in fp32 where tensor ranks share the vocabulary.

An eager one keeps fp32 logarithms, and adds two gradients in fp32. Megatron-LM's over a split vocabulary keeps fp32
probabilities, and has logits of both precisions beside them. A fused one writes gradients over the logits, a compiled
one beside them. What tells them: docs/split-plans.md, "What memory rests on".
"""
WIDE_BYTES = 4
"""Of fp32."""


@dataclass(frozen=True, slots=True)
class BytesOfParameter:
    """Bytes that training keeps of one parameter, of which g ranks share what ``sharding`` says.

    =========  =================================  ========================================
    sharding   what g ranks share                 bytes a parameter of a rank
    =========  =================================  ========================================
    0          nothing                            e_w + e_g + e_main + master + state
    1          what the optimizer updates         e_w + e_g + (e_main + master + state)/g
    2          gradients, too                     e_w + (e_g + e_main + master + state)/g
    3          weights, too                       (e_w + e_g + e_main + master + state)/g
    =========  =================================  ========================================

    (Rajbhandari et al. 2020, arXiv:1910.02054, section 3; Megatron-LM's distributed optimizer is 1.)

    Attributes
    ----------
    weight, gradient : of what kernels read and write, e_w and e_g
    main_gradient : float
        Of a wider copy of the gradient that the optimizer reads, e_main, there while it updates (Megatron-LM in fp16).
    narrow_gradient : of the gradient that kernels write, where it stays whole beside a wider one
    message : of a gradient as it is sent, in which a unit's are whole before they are scattered
    master, state : of the fp32 copy of the weight, and of what the optimizer remembers
    keeps_weight_shards : bool
        Whether sharding 3 keeps shards of what kernels read; FSDP makes it of the master's when it gathers.
    bucket : of a gradient in the buckets of whole replicas, where these are copies
    is_whole : whether a pipeline keeps gradients whole, as they are sent, up to its last micro-batch
    """

    weight: float
    gradient: float
    master: float
    state: float
    main_gradient: float = 0.0
    narrow_gradient: float = 0.0
    message: float = 0.0
    keeps_weight_shards: bool = True
    bucket: float = 0.0
    is_whole: bool = False

    @staticmethod
    def of(precision: str, optimizer: str, gradient: float | None = None) -> BytesOfParameter:
        """Return those of a precision and an optimizer; ``gradient``: what a framework keeps it in, if otherwise.

        8-bit precisions keep 16-bit weights, beside narrow copies of those that run in 8 bits.

        >>> BytesOfParameter.of("bf16", "adam", 4).updated
        12
        """
        if optimizer not in OPTIMIZERS:
            raise UnknownNameError("optimizer", optimizer, OPTIMIZERS)
        sizes = precision_named(precision)
        in_bytes = sizes.gradient_bytes if gradient is None else gradient
        weight = max(sizes.weight_bytes, sizes.activation_bytes)
        return BytesOfParameter(weight, in_bytes, sizes.master_bytes, OPTIMIZERS[optimizer], message=in_bytes)

    @property
    def updated(self) -> float:
        """Of what the optimizer alone keeps from step to step."""
        return self.master + self.state


@dataclass(frozen=True, slots=True)
class MemoryRules:
    """What all plans share, but the network.

    Attributes
    ----------
    sizes : what sizes of a rank depend on: precision, padding, fusions, what selective recompute repeats
    loss : one of LOSSES
    prefetch : units gathered ahead where weights are sharded
    output_buffers : Micro-batches whose fp32 logits the last stage of a pipeline keeps until others take their place,
        up to ``output_sharding``: with more, the framework runs without its pipeline
    rank_order : how ranks are numbered, innermost first: which of those that share shards lie in one node
    deals : one of DEALS; how blocks are dealt out to stages that are even
    shrunk : by what a scenario divides what grows with samples
    frees_gradients : whether there are none while a step's only micro-batch makes its activations
    buffer_elements : parameters of each of two buffers in which shards are reduced, and gathered again, at an update
    device_bytes : of memory, in which activations stay that may leave; 0: all leave
    framework_bytes, communicator_bytes, margin : assumed: of a context; of a group of ranks; of what tensors take
    """

    parameter: BytesOfParameter
    sizes: SizeRules
    loss: str = "parallel"
    prefetch: int = 1
    output_buffers: int = 0
    output_sharding: int = WEIGHTS_SHARDED
    rank_order: tuple[str, ...] = RANK_ORDER
    deals: str = "blocks"
    shrunk: float = 1.0
    frees_gradients: bool = False
    buffer_elements: int = 0
    tries_convolutions: bool = False
    device_bytes: float = 0.0
    framework_bytes: float = ASSUMED_CONTEXT_BYTES["gpu"]
    communicator_bytes: float = ASSUMED_COMMUNICATOR_BYTES["gpu"]
    margin: float = ASSUMED_MARGIN

    def __post_init__(self) -> None:
        if self.loss not in LOSSES:
            raise UnknownNameError("loss", self.loss, LOSSES)
        check_not_negative("framework", self.framework_bytes, "bytes")
        check_not_negative("margin", self.margin, "bytes a byte of tensors")

    @staticmethod
    def of(
        precision: str,
        optimizer: str,
        framework: Framework = GENERIC,
        rank_order: tuple[str, ...] = RANK_ORDER,
        *,
        device_kind: str = "gpu",
        mode: str = "sync",
        convolution: str = "direct",
        shrunk: float = 1.0,
    ) -> MemoryRules:
        """Return the rules of a framework in a precision, with an optimizer; others: as of their fields.

        ``device_kind``: ``gpu`` or ``cpu``; ``mode``: in ``async`` the host holds what updates the weights;
        ``convolution``: one of CONVOLUTIONS, of which ``im2col`` adds the column buffer of a whole sub-batch.
        """
        if device_kind not in ASSUMED_CONTEXT_BYTES:
            raise ParameterError("device kind", "gpu or cpu", device_kind)
        for what, value, known in (("convolution", convolution, CONVOLUTIONS), ("mode", mode, MODES)):
            if value not in known:
                raise UnknownNameError(what, value, known)
        each = BytesOfParameter.of(precision, optimizer, framework.gradient_bytes(precision))
        own = precision_named(precision).gradient_bytes
        each = replace(
            each,
            state=each.state / 2 if framework.state_type == "bf16" and each.state >= WIDE_BYTES else each.state,
            main_gradient=WIDE_BYTES * (framework.main_gradients and each.gradient < WIDE_BYTES),
            narrow_gradient=own * (framework.narrow_gradients and each.gradient > own),
            message=framework.message_bytes(precision),
            keeps_weight_shards=framework.keeps_weight_shards or not each.master,
            bucket=each.gradient * (framework.bucket_copies and mode == "sync"),
            is_whole=framework.whole_gradients,
        )
        if mode == "async":
            each = replace(each, master=0, state=0, main_gradient=0)
        sizes = SizeRules(
            precision_named(precision).activation_bytes,
            narrow_layers(precision),
            framework.pads_vocabulary,
            "activation" in framework.fuses,
            framework.selective,
            convolution == "im2col",
            framework.casts and each.weight < WIDE_BYTES,
            tuple(one for one in framework.composes if one == "gelu"),
        )
        is_eager = framework.loss == "compiled" and not framework.compiles_loss
        return MemoryRules(
            each,
            sizes,
            loss="split" if is_eager else framework.loss,
            prefetch=framework.gathers_ahead,
            output_buffers=framework.output_buffers,
            output_sharding=max(framework.shardings_in_pipeline),
            rank_order=rank_order,
            deals=framework.deals,
            shrunk=shrunk,
            frees_gradients=framework.frees_gradients and mode == "sync",
            buffer_elements=1_000_000 * framework.buffer_millions,
            tries_convolutions=framework.tries_convolutions and device_kind == "gpu",
            framework_bytes=(device_kind == "gpu") * framework.context_mebibytes * 2**20
            or ASSUMED_CONTEXT_BYTES[device_kind],
            communicator_bytes=ASSUMED_COMMUNICATOR_BYTES[device_kind] * (mode == "sync"),
        )

    def outside_bytes(self, plans: Configurations) -> FloatArray:
        """Return what lies outside of the allocator: a context, and a communicator an axis, and of all ranks."""
        degrees = (plans.data_parallel, plans.tensor_parallel, plans.context_parallel, plans.pipeline_parallel)
        axes = sum((one > 1).astype(np.int64) for one in (*degrees, plans.expert_parallel))
        return np.asarray(self.framework_bytes + self.communicator_bytes * (axes + (axes > 1)))
