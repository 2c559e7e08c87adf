"""A training framework: the names it goes by, and what it computes otherwise than others."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from planner.domain.axes import SCHEDULES
from planner.domain.precision import precision_named
from planner.domain.ranks import RANK_ORDER, check_rank_order
from planner.errors import ParameterError, UnknownNameError

__all__ = [
    "BEST_FUSION",
    "FUSIONS",
    "GENERIC",
    "GRADIENT_TYPES",
    "LOSSES",
    "PARALLELISMS",
    "PYTORCH",
    "REPEATED",
    "STAGES",
    "STRATEGIES",
    "Framework",
    "Strategy",
    "name_and_version",
]

GRADIENT_TYPES = ("precision", "fp32")
"""What gradients are held and sent in: the gradients' type of the precision of training, or always fp32."""
PARALLELISMS = ("tensor", "context", "expert", "pipeline")
"""Ways to split a network over devices."""
REPEATED = ("attention", "second products")
"""The core of attention where that keeps its weights; or all of a layer but attention and each first of two products
(torchtitan)."""
FUSIONS = ("activation", "residual", "softmax")
"""Point-wise kernels that are one: the bias of a linear layer with the activation behind it, and gates with their
products; the bias with dropout and the sum behind it; scale, mask and softmax of the shapes that Megatron-LM takes."""
STAGES = ("blocks", "modules", "layers")
"""What its pipeline's stages are: blocks of transformers alone; modules that the user writes, of any network; or layers
of any network, which it deals out by itself."""
LOSSES = ("eager", "parallel", "fused")
"""Kernel by kernel on fp32 copies of logits; over a vocabulary split among tensor ranks; in one kernel."""
_NAME = re.compile(r"[a-z][a-z0-9._+-]*", re.ASCII)


def name_and_version(framework: str) -> tuple[str, str]:
    """Return the name and the version of ``name@version``; version empty where there is none."""
    name, _, version = framework.partition("@")
    return name, version


@dataclass(frozen=True, slots=True)
class Strategy:
    """What overlaps in a synchronous step.

    Attributes
    ----------
    prefetch : bool
        Whether input is loaded during the step before.
    overlap : bool
        Whether gradients are sent as they become ready; else after the backward pass.
    first_bucket_bytes, bucket_bytes : float
        Neighbouring layers are sent together when their gradients are at least so large, the first to be ready and the
        others; 0: each layer by itself.
    best_buckets : bool
        Whether those are sent together that let the last message be done first.
    """

    prefetch: bool = True
    overlap: bool = True
    first_bucket_bytes: float = 0.0
    bucket_bytes: float = 0.0
    best_buckets: bool = False


BEST_FUSION = "best-fusion"
STRATEGIES: Mapping[str, Strategy] = {
    "wait-free": Strategy(),
    "no-overlap": Strategy(prefetch=False, overlap=False),
    # Defaults of PyTorch's DistributedDataParallel: the first bucket is small, so that sending begins early.
    "bucketed": Strategy(first_bucket_bytes=2.0**20, bucket_bytes=25 * 2.0**20),
    BEST_FUSION: Strategy(best_buckets=True),
}
"""Strategies by name, as frameworks follow them that say nothing else."""


@dataclass(frozen=True, slots=True)
class Framework:
    """A framework, of a version where one is asked for.

    Attributes
    ----------
    name : str
        In lower case; what coefficients of its overheads are looked up by.
    aliases : tuple of str
        Other names, in lower case.
    input_gradient : bool
        Whether its backward pass ends at the network's input, whose gradient nothing needs.
    gradient_type : one of GRADIENT_TYPES
    strategies : mapping of one of STRATEGIES to Strategy
        Those that it follows in a way of its own.
    source : str
        Where that comes from.
    version : str
        Free text; empty: any.
    can : tuple of one of PARALLELISMS
        Ways in which it splits networks.
    schedules : tuple of one of SCHEDULES
        Orders of a pipeline's passes that it has.
    most_sharded, most_sharded_in_pipeline : int
        The largest sharding that it has, alone and beside a pipeline.
    fuses : tuple of one of FUSIONS
        Kernels that are one.
    scatters_boundary : bool
        Whether each tensor rank sends its part alone to the next stage, which gathers it.
    stages : one of STAGES
        What it pipelines.
    selective : one of REPEATED
        What selective recompute makes again.
    overlaps_tensor : bool
        Whether messages of tensor ranks run beside products of the backward pass that do not wait for them.
    gathers_ahead : int
        Units whose sharded weights are gathered ahead of their use.
    loss : one of LOSSES
        How it computes the loss of tokens.
    pads_vocabulary : bool
        Whether it rounds the vocabulary up to 128 rows a tensor rank.
    main_gradients : bool
        Whether its optimizer reads fp32 copies of gradients that are not fp32.
    output_buffers : int
        Micro-batches whose fp32 logits stay on the last stage until others take their place; 0: those that wait for
        their backward pass alone.
    keeps_weight_shards : bool
        Whether sharding 3 keeps shards of narrow weights beside those of the fp32 master copy, or makes them of it.
    rank_order : tuple of str
        Order of RANK_ORDER in which it numbers ranks, innermost first.
    """

    name: str
    aliases: tuple[str, ...] = ()
    input_gradient: bool = False
    gradient_type: str = "precision"
    strategies: Mapping[str, Strategy] = field(default_factory=dict, hash=False)
    source: str = ""
    version: str = ""
    can: tuple[str, ...] = PARALLELISMS
    schedules: tuple[str, ...] = SCHEDULES
    most_sharded: int = 3
    most_sharded_in_pipeline: int = 3
    fuses: tuple[str, ...] = ()
    scatters_boundary: bool = False
    stages: str = "modules"
    selective: str = "attention"
    overlaps_tensor: bool = False
    gathers_ahead: int = 1
    loss: str = "eager"
    pads_vocabulary: bool = False
    main_gradients: bool = False
    output_buffers: int = 0
    keeps_weight_shards: bool = True
    rank_order: tuple[str, ...] = RANK_ORDER

    def __post_init__(self) -> None:
        for what, names in (("name", (self.name,)), ("aliases", self.aliases)):
            for name in names:
                if not _NAME.fullmatch(name):
                    raise ParameterError(what, "lower-case letters, digits and . _ + -, a letter first", name)
        for what, value, known in (("loss", self.loss, LOSSES), ("stages", self.stages, STAGES)):
            if value not in known:
                raise UnknownNameError(what, value, known)
        check_rank_order("rank_order", self.rank_order)

    @classmethod
    def labelled(cls, label: str) -> Framework:
        """Return a framework by ``name`` or ``name@version`` alone, which does as most do."""
        name, _, version = label.partition("@")
        return cls(name, version=version)

    @property
    def label(self) -> str:
        """``name`` or ``name@version``."""
        return f"{self.name}@{self.version}" if self.version else self.name

    def gradient_bytes(self, precision: str) -> int:
        """Return the bytes of a gradient element as it is held and sent.

        >>> PYTORCH.gradient_bytes("bf16"), Framework("megatron-lm").gradient_bytes("bf16")
        (4, 2)
        """
        return precision_named("fp32" if self.gradient_type == "fp32" else precision).gradient_bytes


GENERIC = Framework("generic")
"""Stands for any other."""
PYTORCH = Framework(
    "pytorch",
    gradient_type="fp32",
    keeps_weight_shards=False,
    schedules=("gpipe", "1f1b", "interleaved", "zero-bubble", "zero-bubble-v"),
)
"""What is assumed where no framework is named; as in its file."""
