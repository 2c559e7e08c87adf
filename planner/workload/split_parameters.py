"""Parameters on one rank of a split transformer, by stage, and the bytes that training keeps of each.

Tensor ranks split products, biases of columns, tables of tokens and logits (Shoeybi et al. 2019, arXiv:1909.08053,
section 3); norms, biases of rows, routers and what compresses latent keys are whole on each. Where there are more
tensor ranks than heads of keys, some have the same head. Experts lie on x·t ranks, their gradients are summed over
c·D/x. The first stages hold one layer more where layers do not divide; tables stand on the first stage, norm and head
on the last, which has a copy of a tied table of tokens where it is not the first.

=========  =================================  ========================================
sharding   what g ranks share                 bytes a parameter of a rank
=========  =================================  ========================================
0          nothing                            e_w + e_g + e_main + master + state
1          what the optimizer updates         e_w + e_g + (e_main + master + state)/g
2          gradients, too                     e_w + (e_g + e_main + master + state)/g
3          weights, too                       (e_w + e_g + e_main + master + state)/g
=========  =================================  ========================================

(Rajbhandari et al. 2020, arXiv:1910.02054, section 3; Megatron-LM's distributed optimizer is 1.)
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from planner.domain.arrays import FloatArray, IntArray
from planner.domain.configuration import OPTIMIZERS
from planner.domain.precision import precision_named
from planner.domain.ranks import RANK_ORDER
from planner.domain.split import SHARD_GROUPS, SplitPlans
from planner.domain.transformer import Transformer
from planner.errors import UnknownNameError
from planner.workload.placement import Placement
from planner.workload.transformer import (
    blocks,
    layer_parameters,
    outer_parameters,
    padded_vocabulary,
)

__all__ = [
    "BytesOfParameter", "RankParameters", "StageLayers", "even_layers", "shard_ranks", "stage_blocks",
    "stage_parameters",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class BytesOfParameter:
    """Bytes that training keeps of one parameter.

    Attributes
    ----------
    weight, gradient : float
        Of what kernels read and write, e_w and e_g.
    main_gradient : float
        Of a wider copy of the gradient that the optimizer reads, e_main, there while it updates (Megatron-LM in fp16).
    master, state : float
        Of the fp32 copy of the weight, and of what the optimizer remembers.
    keeps_weight_shards : bool
        Whether sharding 3 keeps shards of what kernels read; FSDP makes it of the master's when it gathers.
    """

    weight: float
    gradient: float
    master: float
    state: float
    main_gradient: float = 0.0
    keeps_weight_shards: bool = True

    @staticmethod
    def of(precision: str, optimizer: str, gradient: float | None = None) -> BytesOfParameter:
        """Return those of a precision and an optimizer; ``gradient``: what a framework keeps it in, if otherwise.

        Weights of 8-bit precisions are counted as 16-bit, as embedding and norms have them.

        >>> BytesOfParameter.of("bf16", "adam", 4)
        BytesOfParameter(weight=2, gradient=4, master=4, state=8, main_gradient=0.0, keeps_weight_shards=True)
        """
        if optimizer not in OPTIMIZERS:
            raise UnknownNameError("optimizer", optimizer, OPTIMIZERS)
        sizes = precision_named(precision)
        in_bytes = sizes.gradient_bytes if gradient is None else gradient
        weight = max(sizes.weight_bytes, sizes.activation_bytes)
        return BytesOfParameter(weight, in_bytes, sizes.master_bytes, OPTIMIZERS[optimizer])

    @property
    def updated(self) -> float:
        """Of what the optimizer alone keeps from step to step."""
        return self.master + self.state


@dataclass(frozen=True, slots=True)
class RankParameters:
    """Parameters on one rank of a stage, each of shape (n,).

    Attributes
    ----------
    shared : all but experts, summed over c·D ranks
    experts : summed over c·D/x ranks
    whole : those of ``shared`` that each tensor rank has whole and sees its own positions of alone where tensor
        ranks share positions: of layers, and the last norms; layers before the logits of a masked head are left out
    largest_unit : of what is gathered at once where weights are sharded: a layer, the table of tokens, or the logits
    """

    shared: FloatArray
    experts: FloatArray
    whole: FloatArray
    largest_unit: FloatArray

    @property
    def total(self) -> FloatArray:
        """All of them."""
        return self.shared + self.experts


class StageLayers(NamedTuple):
    """The layers of f stages, each of shape (f,).

    From ``first`` up to ``end``, of which the first ones, ``again`` in number, are computed again.
    """

    first: IntArray
    end: IntArray
    again: IntArray

    @property
    def computed_again(self) -> StageLayers:
        """Those that are computed again alone."""
        return self._replace(end=self.first + self.again)


def even_layers(number: int, pipeline: IntArray, stage: IntArray) -> StageLayers:
    """Return the layers of stages that are dealt out evenly: the first stages have one more. All may be made again."""
    each, more = number // pipeline, number % pipeline
    first = stage * each + np.minimum(stage, more)
    end = first + each + (stage < more)
    return StageLayers(first, end, end - first)


def stage_blocks(
    of: Transformer, pipeline: IntArray, stage: IntArray, layers: StageLayers | None = None
) -> tuple[tuple[str, FloatArray], ...]:
    """Return kinds of layers and how many of them a stage has; ``layers`` None: they are dealt out evenly."""
    kinds = blocks(of)
    first, end, _ = layers or even_layers(sum(count for _, count in kinds), pipeline, stage)
    result, before = [], 0
    for kind, count in kinds:
        inside = np.minimum(end, before + count) - np.maximum(first, before)
        result.append((kind, np.maximum(inside, 0.0)))
        before += count
    return tuple(result)


def stage_parameters(
    of: Transformer, plans: SplitPlans, stage: IntArray, *, padded: bool = False, layers: StageLayers | None = None
) -> RankParameters:
    """Return the parameters of a rank of a stage.

    Parameters
    ----------
    of : Transformer
    plans : SplitPlans
    stage : ndarray of int
        From 0, broadcasts with the plans.
    padded : bool
        Whether the vocabulary is rounded up to 128 a tensor rank, as Megatron-LM does; else to a whole number a rank.
    layers : StageLayers, optional
        Of each stage, where they are not dealt out evenly.

    Returns
    -------
    RankParameters
    """
    common, experts, whole, unit = np.zeros((4, *plans.shape))
    for kind, count in stage_blocks(of, plans.pipeline_parallel, stage, layers):
        dense, routed = _layer(of, plans, kind)
        common, experts = common + count * dense, experts + count * routed
        whole = whole + count * _whole(of, kind)
        unit = np.maximum(unit, np.where(count > 0, dense + routed, 0.0))
    first, last = stage == 0, stage == plans.last_stage
    entry, tokens, head, logits = _outside(of, plans, padded=padded)
    common = common + first * (entry + tokens) + last * head + (last & np.logical_or(not of.tied, stage > 0)) * logits
    unit = np.maximum(unit, np.maximum(first * tokens, last * logits))
    whole = whole + (last if of.norm_first else first) * float(outer_parameters(of).norms)
    return RankParameters(common, experts, whole, unit)


def stages_that_can_be_worst(of: Transformer, plans: SplitPlans) -> list[IntArray]:
    """Return stages, one of which needs most memory.

    Of stages between the ends that have layers of one kind the first has most layers and live micro-batches; others can
    need more where the kind changes.
    """
    p = plans.pipeline_parallel
    if np.max(p) == 1:
        return [np.zeros_like(p)]
    stages = [np.zeros_like(p), np.minimum(1, p - 1)]
    kinds = blocks(of)
    total = sum(count for _, count in kinds)
    for before in accumulate(count for _, count in kinds[:-1]):
        each, more = np.divmod(total, p)
        long = (each + 1) * more
        of_long, of_short = before // (each + 1), more + (before - long) // np.maximum(each, 1)
        changes = np.where(before < long, of_long, of_short)
        stages += [np.clip(changes, 0, p - 1), np.clip(changes + 1, 0, p - 1)]
    return [*stages, p - 1]


def shard_ranks(plans: SplitPlans, order: tuple[str, ...] = RANK_ORDER, *, experts: bool = False) -> FloatArray:
    """Return g, the ranks that share shards of all parameters but experts, or of experts; shape (n,).

    ``order``: how ranks are numbered, innermost first.
    """
    x = plans.expert_parallel if experts else 1
    everyone = np.maximum(1.0, plans.data_parallel * np.float64(1) * plans.context_parallel / x)
    by_node = plans.shard_group == SHARD_GROUPS.index("node")
    if order == RANK_ORDER or not by_node.any():
        inside = np.maximum(1.0, plans.gpus_per_node // (plans.tensor_parallel * x))
    else:
        placement = Placement(plans.rows, order=order)
        groups = placement.expert_node_shards if experts else placement.node_shards
        inside = groups.ranks.reshape(plans.shape)
    return np.where(by_node, np.minimum(everyone, inside), everyone)


def _layer(of: Transformer, plans: SplitPlans, kind: str) -> tuple[FloatArray, FloatArray]:
    """Return the parameters of a rank's part of a layer: of experts, and all others."""
    t, x = plans.tensor_parallel.astype(np.float64), plans.expert_parallel
    each = layer_parameters(of, kind)
    copies = 0.0 if of.latent else np.maximum(1 / of.kv_heads, 1 / t) - 1 / t
    keys = 2.0 * of.kv_width * (of.hidden + of.biases)
    split = float(each.products + each.column_biases) / t + keys * copies
    return _whole(of, kind) + split, each.experts / (t * x)


def _whole(of: Transformer, kind: str) -> float:
    """Return the parameters of a layer that every tensor rank has whole."""
    each = layer_parameters(of, kind)
    return float(each.row_biases + each.norms + each.router + each.compression)


def _outside(of: Transformer, plans: SplitPlans, *, padded: bool) -> tuple[float, FloatArray, float, FloatArray]:
    """Return what is whole on the first stage, the table of tokens, what is whole on the last stage, and the logits."""
    outer, t = outer_parameters(of), plans.tensor_parallel
    vocabulary = padded_vocabulary(of.vocabulary, t) if padded else of.vocabulary
    tokens = np.ceil(vocabulary / t) * of.hidden
    logits = tokens if of.has_logits else np.zeros_like(tokens)
    before, behind = (0.0, outer.norms) if of.norm_first else (outer.norms, 0.0)
    return outer.positions + outer.buckets + before, tokens, behind + float(outer.head_besides), logits
