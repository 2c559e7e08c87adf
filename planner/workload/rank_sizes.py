"""What one rank's shard of a network holds of each unit: parameters, and bytes that grow with samples.

Every tensor that the backward pass needs is counted once, where it is first kept (:mod:`planner.domain.layers` says
which layers keep what); one that a unit is given by those before it crosses the cut before that unit. With a units cut
off from b units, of a stage that holds units a up to b,

    kept(a, b) = crossing(a) + sum of own(u), a <= u < b, + sum of joined(u), a < u < b,

own(u): kept by u of what it makes; joined(u): what u - 1 makes and u, or one behind it, keeps. All are sums, so that a
stage is the difference of two prefix sums, and any network with cuts between its units, equal or not, is counted alike.

Tensor ranks that share positions have a t-th of what they leave whole between split products; experts are given rows
of all positions. Logits are apart: what a loss takes of them is a rule of memory (LOSS_BYTES).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from math import prod
from operator import attrgetter

import numpy as np

from planner.domain.arrays import FloatArray, IntArray, once_of
from planner.domain.configuration import SHARD_AXES, Configurations
from planner.domain.layers import LAYER_KINDS
from planner.domain.layers.products import needs_columns
from planner.domain.layers.record import INPUT, Layer, Site, tensors_of
from planner.domain.network import Network, layer_shapes
from planner.workload.program import Program, block_starts, is_composed_gelu, program, wide_tensors
from planner.workload.shards import columns_of, context_shard, expert_shard, tensor_shard, with_padded_vocabulary
from planner.workload.units import few_blocks, repeats, units_of

SUMS = (
    "shared", "experts", "trained", "trained_experts", "tied", "copies", "own", "joined", "made", "freed", "logits",
)  # fmt: skip
"""What adds up over units. Parameters: all but experts, experts, those of both that are trained, and tables that a tied
layer shares with one before it; bytes of narrow copies of weights. Of a sample in bytes: ``own`` and ``joined`` as
above; ``made``, what the unit before makes and this one, or one behind it, reads; ``freed`` of ``own`` by selective
recompute; ``logits`` in elements."""
MOST = ("gathered", "scattered", "copied", "held", "gradients", "working", "selective", "whole")
"""What one unit has at most. Parameters that are gathered at a time, those whose gradients are scattered, and bytes of
narrow copies that are gathered. Of a sample in bytes: what a unit keeps; gradients of activations; these with all that
units up to it keep, and with what selective, or full, recompute makes again: while a unit runs backward, those behind
it keep nothing any more."""
_WIDE_BYTES = 4
"""Of fp32."""
_TILE = 32
"""Positions on a side."""
_COPIES = 2
"""Bytes of a weight whose products run in 8 bits: itself and its transpose, beside 16 bits (NVIDIA/TransformerEngine,
pytorch/module/linear: ``weight_fp8`` and ``weight_t_fp8``)."""


@dataclass(frozen=True, slots=True)
class SizeRules:
    """What sizes depend on besides the network and the degrees.

    ``itemsize``: bytes of an activation; ``narrow``: kinds of layers whose products run in 8 bits; ``is_padded``: the
    vocabulary is rounded up to 128 rows a tensor rank; ``fuses_activation``: gates and their products are one kernel,
    which keeps its input alone; ``selective``: one of :data:`planner.domain.framework.REPEATED`; ``has_columns``:
    convolutions are done by im2col; ``casts``, ``composes``: as of :func:`planner.workload.program.wide_tensors`.
    """

    itemsize: int = 2
    narrow: tuple[str, ...] = ()
    is_padded: bool = False
    fuses_activation: bool = False
    selective: str = "attention"
    has_columns: bool = False
    casts: bool = False
    composes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RankSizes:
    """The sizes of V units on one rank.

    Attributes
    ----------
    sums : ndarray of float, shape (len(SUMS), V)
    most : ndarray of float, shape (len(MOST), V)
    crossing : bytes of a sample that cross the cut before each unit; the first is the network's input, behind the last
        nothing, (V + 1,)
    given : of these what a stage keeps that starts there: nothing before units without a backward pass, (V + 1,)
    gathered, routed : bytes of a sample: the largest input of a product that tensor ranks which share positions gather;
        rows that experts of other ranks are sent
    """

    sums: FloatArray
    most: FloatArray
    crossing: FloatArray
    given: FloatArray
    gathered: float
    routed: float

    @staticmethod
    def of(few: tuple[Network, IntArray], rules: SizeRules, degrees: tuple[int, int, int, int]) -> RankSizes:
        """Return the sizes of a rank of a network, given as :func:`planner.workload.units.few_blocks` returns it.

        ``degrees``: tensor, whether its ranks share positions, context, expert; ParameterError: one of them does not
        divide the network.
        """
        short, place = few
        return RankSizes._of(_FewSizes(short, rules, degrees), place)

    @staticmethod
    def _of(one: _FewSizes, place: IntArray) -> RankSizes:
        sums, most = one.sums[:, place], one.most[:, place]
        own, joined, made, freed = (sums[SUMS.index(name)] for name in ("own", "joined", "made", "freed"))
        most[MOST.index("working") :] += np.cumsum([own + joined, own + joined - freed, made], axis=1)
        crossing, given = (np.append(some[place], 0.0) for some in (one.crossing, one.crossing * one.is_reached))
        return RankSizes(sums, most, crossing, given, one.gathered, one.routed)


class _FewSizes:
    """Sizes of the units of a network without repeated blocks; attributes as of :class:`RankSizes`."""

    def __init__(
        self,
        network: Network,
        rules: SizeRules,
        degrees: tuple[int, int, int, int],
        parts: tuple[Program, FloatArray, FloatArray, float] | None = None,
    ) -> None:
        tensor, shares, context, experts = degrees
        if rules.fuses_activation:
            network = _with_fused_gates(network)
        whole = with_padded_vocabulary(network, tensor) if rules.is_padded else network
        split = tensor_shard(whole, tensor)
        shard = context_shard(expert_shard(split, experts), context)
        self.rules, self.itemsize = rules, rules.itemsize
        self.program = of = parts[0] if parts else program(shard)
        self.layers, self.units = shard.layers, units_of(network, of)
        self.number = self.units.starts.size
        self.unit = np.repeat(np.arange(self.number), np.diff([*self.units.starts.tolist(), len(shard.layers)]))
        self.is_block = np.zeros(self.number, dtype=np.bool_)
        self.is_block[slice(1, -1) if block_starts(network) else slice(None)] = True
        self.part = np.ones(len(shard.layers))
        if shares and tensor > 1:
            outputs = layer_shapes(whole), layer_shapes(split)
            is_whole = [outputs[0][layer.name] == outputs[1][layer.name] for layer in split.layers]
            self.part = np.where(is_whole, 1.0 / tensor, 1.0)
        self.gathered_elements, self.input_part = np.zeros(len(shard.layers)), 1.0
        if parts:
            _, self.part, self.gathered_elements, self.input_part = parts
        types = wide_tensors(shard, on_gpu=True, casts=rules.casts, composes=rules.composes)
        self.reads = [[_WIDE_BYTES if one else rules.itemsize for one in types[layer.name]] for layer in shard.layers]
        self.each = np.array([one[-1] for one in self.reads], dtype=np.float64)
        self.output_bytes = self.each * self._by_site(lambda site: site.output_elements) * self.part
        self.has_gradient = self._by_site(lambda site: site.has_gradient) > 0
        self.is_reached = (self.units.reached > 0)[self.units.sequence]
        self.crossing = np.zeros(self.number)
        names, sites = {name for name, _ in columns_of(network)}, self.program.sites
        inputs = [prod(site.inputs[0]) for site in sites if site.layer.name in names]
        self.gathered = shares * (tensor > 1) * float(self.itemsize * max(inputs, default=0))
        rows = [  # that experts of a layer are sent, and send back, each: of positions that are shared
            site.layer.integer("top_k") * (site.layer.number("capacity") or 1.0) * self.output_bytes[site.position]
            for site in sites
            if site.layer.kind == "experts"
        ]
        self.routed = 2.0 * (experts > 1) * float(max(rows, default=0.0))
        self._count()

    def _by_site(self, value: Callable[[Site], float]) -> FloatArray:
        of = self.program
        return np.array([float(value(site)) for site in of.sites])[of.site]

    def _by_unit(self, of_layers: FloatArray) -> FloatArray:
        return np.bincount(self.unit, of_layers, minlength=self.number).astype(np.float64)

    def _count(self) -> None:
        layers, rules, nothing = self.layers, self.rules, np.zeros(len(self.layers))
        parameters, trained = (self._by_site(attrgetter(name)) for name in ("parameters", "trained"))
        kind = [layer.kind for layer in layers]
        is_loss = np.array([one == "loss" for one in kind])
        is_experts = np.array([one == "experts" for one in kind])
        by_unit, experts, trained_by_unit, trained_experts = (
            self._by_unit(one) for one in (parameters, parameters * is_experts, trained, trained * is_experts)
        )
        tied = np.array(
            [
                prod((one.inputs[0][-1], one.output[-1])) * bool(one.layer.attributes.get("tied"))
                for one in self.program.sites
            ]
        )
        copies = nothing
        if rules.narrow:
            copies = np.where(np.isin(kind, rules.narrow), _COPIES * parameters, 0.0)
        besides = self._besides()
        own, joined, made = self._tensors(besides)
        is_block = self.is_block
        freed = self._by_unit(self._freed(besides)) * is_block
        if rules.selective != "attention":
            freed = (own - freed) * is_block
        logits = self._by_unit(
            np.where(is_loss & self.has_gradient, self.part * self._by_site(lambda site: site.input_elements), 0.0)
        )
        tied_by_unit = self._by_unit(tied[self.program.site].astype(np.float64))
        self.sums = np.stack(
            [by_unit - experts, experts, trained_by_unit - trained_experts, trained_experts, tied_by_unit,
             self._by_unit(copies), own, joined, made * self.is_reached, freed, logits]
        )  # fmt: skip
        gradients = live_gradients(self.program, self.part * self.each / self.itemsize)
        if (trained < parameters).any():  # what is there while layers without a backward pass compute
            both = self._by_site(lambda site: site.input_elements + site.output_elements)
            gradients = np.where(self.has_gradient, gradients, both * self.part * self.each / self.itemsize)
        columns = self._by_site(column_elements) if rules.has_columns else nothing
        if rules.narrow:  # an operand and its transpose, while a product runs
            operands = self._by_site(lambda site: _COPIES * (site.input_elements + site.output_elements))
            columns = columns + np.where(np.isin(kind, rules.narrow), operands, 0.0) / self.itemsize
        working = self.itemsize * np.maximum.reduceat(gradients + columns, self.units.starts)
        largest, is_trained = np.zeros((2, self.number)), np.array([not layer.is_frozen for layer in layers])
        largest_tensor = self._by_site(lambda site: float(max(tensors_of(site.layer, site.inputs[0]), default=0)))
        for at, of_layers in enumerate((np.ones(len(layers)), is_trained.astype(np.float64))):
            tensors = of_layers * np.maximum(largest_tensor, tied[self.program.site])
            np.maximum.at(largest[at], self.unit, tensors)
        gathered = np.where(is_block, by_unit, largest[0])
        scattered = np.where(is_block, trained_by_unit, largest[1])
        self.most = np.stack(
            [gathered, scattered, self._by_unit(copies), (own + joined) * is_block, working, working, working + freed,
             working + own * is_block]
        )  # fmt: skip

    def _besides(self) -> FloatArray:
        """Return the bytes per sample that each layer keeps besides tensors of layers, shape (L,)."""
        size, nothing = self.itemsize, (0.0, 0.0)
        each = [
            (
                float(LAYER_KINDS[site.layer.kind].kept_besides(site, size)),
                float(LAYER_KINDS[site.layer.kind].kept_between(site, size)),
            )
            if site.has_gradient
            else nothing
            for site in self.program.sites
        ]
        besides, between = np.array(each)[self.program.site].T
        kinds = np.isin([layer.kind for layer in self.layers], ("embedding", "experts"))
        composed = [self._is_composed_gelu(site.layer) for site in self.program.sites]
        chain = 2 * _WIDE_BYTES + size  # tanh(z), 1 + tanh(z) and x/2, beside x
        more = np.where(np.array(composed)[self.program.site], chain, self.each * self._by_site(_kept_more))
        besides = besides + more * self._by_site(lambda site: site.output_elements)
        shared = np.where(kinds, between, besides)
        return np.asarray(besides - shared + shared * self.part + size * self.gathered_elements)

    def _tensors(self, besides: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return own, joined and made by unit, and set what crosses cuts."""
        unit, root, made_by = self.unit.tolist(), {INPUT: INPUT}, {INPUT: -1}
        last, keeper, own = {INPUT: 0}, dict[str, int](), self._by_unit(besides)
        each = _WIDE_BYTES if self.rules.casts else self.itemsize
        size = {INPUT: float(self.input_part * each * prod(self.program.network.input_shape))}
        for at, layer in enumerate(self.layers):
            kind = LAYER_KINDS[layer.kind]
            for source in layer.inputs:
                last[root[source]] = unit[at]
            root[layer.name] = root[layer.inputs[0]] if kind.is_view else layer.name
            if not kind.is_view:
                made_by[layer.name] = last[layer.name] = unit[at]
                size[layer.name] = float(self.output_bytes[at])
            if self.has_gradient[at]:
                of_inputs, of_output = layer.keeps
                copies = self._copied(at, kind.computes)
                for name in (*layer.inputs * of_inputs, *(layer.name,) * of_output):
                    if name in copies:
                        own[unit[at]] += size[root[name]] * copies[name]
                    else:
                        keeper.setdefault(root[name], unit[at])
        changes, (joined, made) = np.zeros(self.number + 1), np.zeros((2, self.number))
        for name, maker in made_by.items():
            if keeper.get(name) == maker:
                own[maker] += size[name]
            if last[name] > maker:
                changes[maker + 1] += size[name]
                changes[last[name] + 1] -= size[name]
                made[maker + 1] += size[name]
                joined[maker + 1] += size[name] * (keeper.get(name, -1) > maker)
        self.crossing = np.cumsum(changes)[:-1]
        return own, joined, made

    def _is_composed_gelu(self, layer: Layer) -> bool:
        return is_composed_gelu(layer, self.rules.composes, casts=self.rules.casts)

    def _copied(self, at: int, computes: str) -> dict[str, float]:
        """Return the inputs of which a layer keeps a copy in another type; its bytes over those of the input."""
        layer, (*reads, _) = self.layers[at], self.reads[at]
        if computes == "16 bits":
            own = self.itemsize
        elif self._is_composed_gelu(layer) or (self.rules.casts and computes != "widest"):
            own = _WIDE_BYTES
        else:
            return {}
        return {name: own / size for name, size in zip(layer.inputs, reads, strict=True) if size != own}

    def _freed(self, besides: FloatArray) -> FloatArray:
        """Return what selective recompute frees of each layer, or what it leaves where it names what stays, (L,)."""
        attends = self.units.is_attention
        if self.rules.selective == "attention":
            weights = self._by_site(lambda site: LAYER_KINDS[site.layer.kind].repeated(site, self.itemsize))
            return np.where(self.units.repeats_attention & self.has_gradient, weights, 0.0)
        stays = 1.0 - repeats(self.program.network, self.units, self.rules.selective, is_product=True)
        is_product = np.array([layer.kind == "linear" for layer in self.layers])
        return np.where(is_product | attends, stays * self.output_bytes, 0.0) + np.where(attends, besides, 0.0)


class Ranks:
    """Sizes of the ranks of one network that were asked for, as arrays: R ranks of V units.

    ``only``: those of every rank, whatever its degrees.

    Attributes
    ----------
    sums : of all units before one, (R, len(SUMS), V + 1)
    most : of 2^level units from one on, (R, len(MOST), levels, V + 1)
    crossing : ndarray of float, shape (R, V + 1)
    gathered, routed : ndarray of float, shape (R,)
    """

    def __init__(self, network: Network, rules: SizeRules, only: RankSizes | None = None) -> None:
        self.network, self.rules, self._only = network, rules, only
        self._few = few_blocks(network)
        self._place: dict[tuple[int, ...], int] = {}
        self._each = [] if only is None else [only]
        self._arrays: dict[str, FloatArray] = {}
        self._of(1, 0, 1, 1)

    def rank(self, plans: Configurations) -> IntArray:
        """Return the rank of each plan, shape (n,), made where it is new."""
        first, which = plans.distinct(SHARD_AXES)
        some = plans.take(first)
        degrees = zip(*(getattr(some, name).tolist() for name in SHARD_AXES), strict=True)
        return np.array([self._of(*each) for each in degrees], dtype=np.int64)[which]

    def _of(self, tensor: int, shares: int, context: int, experts: int) -> int:
        if self._only is not None:
            return 0
        key = tensor, shares if tensor > 1 else 0, context, experts
        if key not in self._place:
            self._place[key] = len(self._each)
            self._each.append(RankSizes.of(self._few, self.rules, key))
            self._arrays = {}
        return self._place[key]

    def sizes(self, rank: int) -> RankSizes:
        """Return those of one rank."""
        return self._each[rank]

    def array(self, name: str) -> FloatArray:
        """Return an array of all ranks."""
        if name not in self._arrays:
            make = {"sums": self._sums, "most": self._most}.get(name, attrgetter(name))
            self._arrays[name] = np.array([make(one) for one in self._each])
        return self._arrays[name]

    @staticmethod
    def _sums(one: RankSizes) -> FloatArray:
        return np.pad(np.cumsum(one.sums, axis=1), ((0, 0), (1, 0)))

    @staticmethod
    def _most(one: RankSizes) -> FloatArray:
        levels = [np.pad(one.most, ((0, 0), (0, 1)))]
        width = one.most.shape[1] + 1
        while (reach := 2 ** (len(levels) - 1)) < width:
            shifted = np.pad(levels[-1], ((0, 0), (0, reach)))[:, reach:]
            levels.append(np.maximum(levels[-1], shifted))
        return np.stack(levels, axis=1)


def scheme_sizes(network: Network, rules: SizeRules, parts: tuple[Program, FloatArray, FloatArray, float]) -> RankSizes:
    """Return the sizes of a rank by schemes of its layers.

    ``parts``: its program; the part of each layer's output, as the program says it, that the rank has, and elements of
    inputs that each layer keeps besides, shape (L,) each; and the part of the network's input that it reads.
    """
    one = _FewSizes(network, rules, (1, 0, 1, 1), parts)
    return RankSizes._of(one, np.arange(one.number))  # noqa: SLF001 - of its own kind


@once_of
def ranks_of(network: Network) -> Callable[[SizeRules], Ranks]:
    """Return what gives the sizes of the ranks of a network by rules, each made once."""
    return cache(partial(Ranks, network))


def _kept_more(site: Site) -> float:
    """Elements per element out; what normalisation of primitives keeps is for its scale, where that is trained."""
    return 0.0 if site.layer.is_frozen and site.layer.kind.endswith("_norm") else site.layer.kept


def _with_fused_gates(network: Network) -> Network:
    """Return a network whose gates are one kernel each, and whose activations and norms keep their input alone."""
    gates, functions = {"gated_activation", "experts"}, {"gated_activation", "activation", "rms_norm", "layer_norm"}
    layers = tuple(
        replace(
            one,
            attributes={**one.attributes, "fused": True} if one.kind in gates else one.attributes,
            kept=0.0 if one.kind in functions else one.kept,
        )
        for one in network.layers
    )
    return network if layers == network.layers else replace(network, layers=layers)


def live_gradients(of: Program, part: FloatArray | None = None) -> FloatArray:
    """Return the elements per sample of activation gradients that exist while each layer runs backward, shape (L,).

    Backward runs in reverse order. A layer's step needs the gradient of its output and makes those of its inputs,
    which stay until the layers they belong to have run; so a shortcut's gradient waits while its branch runs. Inside of
    attention the gradients of its weights before and behind the softmax are there together; inside of fused attention,
    those of queries, keys and values before they are joined. Those of logits do not count.

    ``part``: of each layer's output that a rank has.
    """
    sizes = np.array([float(site.output_elements) for site in of.sites])[of.site] * (1.0 if part is None else part)
    inside = [LAYER_KINDS[site.layer.kind].inside(site) for site in of.sites]
    at = {layer.name: place for place, layer in enumerate(of.network.layers)}
    for layer in of.network.layers:
        if layer.kind == "loss" and layer.inputs[0] in at:
            sizes[at[layer.inputs[0]]] = 0.0
    live: dict[str, float] = {}
    elements = np.zeros(of.site.size)
    for position in range(of.site.size - 1, -1, -1):
        layer, site = of.network.layers[position], of.sites[of.site[position]]
        if not site.has_gradient:
            continue
        live.setdefault(layer.name, float(sizes[position]))
        for source, flows in zip(layer.inputs, site.input_gradients, strict=True):
            if flows:
                live[source] = float(sizes[at[source]])
        elements[position] = sum(live.values()) + inside[of.site[position]]
        del live[layer.name]
    return elements


def column_elements(site: Site) -> float:
    """Return the elements per sample of a layer's im2col buffer; 0 where it needs none."""
    if not needs_columns(site.layer):
        return 0.0
    return float(prod(site.output[1:]) * prod(site.layer.pair("kernel")) * site.inputs[0][0])


def transform_elements(site: Site) -> tuple[float, float]:
    """Return the elements that a convolution by Fourier transforms takes, of any sub-batch and besides of a sample.

    Of tiles of 32 x 32, of which each has 32 x 17 complex numbers, of both tensors and of all kernels, each in a tile
    of its own (CUDNN_CONVOLUTION_FWD_ALGO_FFT_TILING); 0 of what is no convolution, or has strides or groups.
    """
    layer = site.layer
    if layer.kind != "convolution" or layer.pair("stride") != (1, 1) or layer.integer("groups") > 1:
        return 0.0, 0.0
    channels, (made, *sides) = site.inputs[0][0], site.output
    tiles = prod(-(-side // (_TILE + 1 - kernel)) for side, kernel in zip(sides, layer.pair("kernel"), strict=True))
    each = float(_TILE * (_TILE + 2))
    return each * channels * made, each * tiles * (channels + made)
