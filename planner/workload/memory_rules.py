"""What the memory of all plans that split a transformer is counted by, but the network."""

from __future__ import annotations

from dataclasses import dataclass, replace

from planner.domain.arrays import check_not_negative, check_positive, frozen_map
from planner.domain.framework import LOSSES, Framework
from planner.domain.precision import precision_named
from planner.domain.ranks import RANK_ORDER
from planner.domain.split import WEIGHTS_SHARDED
from planner.errors import UnknownNameError
from planner.numbers import constant
from planner.workload.memory import ASSUMED_CONTEXT_BYTES
from planner.workload.split_parameters import BytesOfParameter

__all__ = ["ASSUMED_MARGIN", "LOSS_BYTES", "WIDE_BYTES", "MemoryRules"]

ASSUMED_MARGIN = constant("memory.margin")
"""Of what tensors take: what the allocator loses in pieces (docs/numbers.md)."""
LOSS_BYTES = frozen_map(dict(zip(LOSSES, ((1, 4, 1, 12), (0, 4, 1, 8), (1, 0, 1, 0)), strict=True)))
"""Loss -> logits that a micro-batch keeps, of the working precision and in bytes of fp32, and their peak likewise.

An eager one keeps logits and fp32 logarithms, and adds two gradients in fp32. Megatron-LM's over a split vocabulary
keeps fp32 probabilities, and has logits of both precisions beside them. A fused one writes gradients over the logits.
What tells them: docs/split-plans.md, "What memory rests on".
"""
WIDE_BYTES = 4
"""Of fp32."""


@dataclass(frozen=True, slots=True)
class MemoryRules:
    """What all plans share, but the network.

    Attributes
    ----------
    parameter : BytesOfParameter
    precision : str
        Of activations.
    loss : one of LOSSES
    padded : bool
        Whether the vocabulary is padded as Megatron-LM does.
    fused_activation : bool
        Of a gated feed-forward part.
    imbalance : float
        u, rows of the fullest rank's experts over their mean; 1 is assumed.
    prefetch : int
        Units gathered ahead where weights are sharded.
    output_buffers : int
        Micro-batches whose fp32 logits the last stage keeps until others take their place, up to ``output_sharding``:
        with more, the framework runs without its pipeline.
    bucket_bytes : float
        Of a gradient bucket that is a copy; 0: gradients are sent from where they are.
    rank_order : tuple of str
        How ranks are numbered, innermost first: which of those that share shards lie in one node.
    framework_bytes, margin : float
        Assumed: of a context; of what tensors take.
    """

    parameter: BytesOfParameter
    precision: str = "bf16"
    loss: str = "parallel"
    padded: bool = False
    fused_activation: bool = True
    imbalance: float = 1.0
    prefetch: int = 1
    output_buffers: int = 0
    output_sharding: int = WEIGHTS_SHARDED
    bucket_bytes: float = 0.0
    rank_order: tuple[str, ...] = RANK_ORDER
    framework_bytes: float = ASSUMED_CONTEXT_BYTES["gpu"]
    margin: float = ASSUMED_MARGIN

    def __post_init__(self) -> None:
        precision_named(self.precision)
        if self.loss not in LOSSES:
            raise UnknownNameError("loss", self.loss, LOSSES)
        check_positive("imbalance of experts", self.imbalance, "rows a mean row")
        for what, value in (("bucket", self.bucket_bytes), ("framework", self.framework_bytes)):
            check_not_negative(what, value, "bytes")
        check_not_negative("margin", self.margin, "bytes a byte of tensors")

    @staticmethod
    def of(
        precision: str, optimizer: str, framework: Framework, rank_order: tuple[str, ...] = RANK_ORDER
    ) -> MemoryRules:
        """Return the rules of a framework in a precision, with an optimizer."""
        each = BytesOfParameter.of(precision, optimizer, framework.gradient_bytes(precision))
        copies = framework.main_gradients and each.gradient < WIDE_BYTES
        shards = framework.keeps_weight_shards or not each.master
        each = replace(each, main_gradient=WIDE_BYTES * copies, keeps_weight_shards=shards)
        return MemoryRules(
            each,
            precision,
            loss=framework.loss,
            padded=framework.pads_vocabulary,
            prefetch=framework.gathers_ahead,
            output_buffers=framework.output_buffers,
            output_sharding=framework.most_sharded_in_pipeline,
            rank_order=rank_order,
        )

    @property
    def itemsize(self) -> int:
        """Bytes of an activation."""
        return precision_named(self.precision).activation_bytes
