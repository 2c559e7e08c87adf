"""Which degrees a network and a framework allow, rule by rule, as arrays over plans.

Divisions of heads, layers, positions and experts are those of Megatron-LM (NVIDIA/Megatron-LM at d98e8a64): a mod t,
groups of keys that divide t or are divided by it, L mod p·v for interleaved stages, s mod 2c, E mod x. Of
micro-batches ZB-V needs 2p (Qi et al. 2023, arXiv:2401.10241), and a pipeline that is never flushed updates after each
(Narayanan et al. 2019, arXiv:1806.03377).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from planner.domain.arrays import BoolArray, IntArray
from planner.domain.axes import AXES, SCHEDULES
from planner.domain.configuration import LARGEST_MINI_BATCH, NEUTRAL, SPLIT_AXES, Configurations
from planner.domain.framework import FEWEST, Framework
from planner.domain.network import Network
from planner.domain.split import BEST_STAGES, RECOMPUTES, WEIGHTS_SHARDED
from planner.errors import ParameterError
from planner.workload.program import block_starts, program
from planner.workload.shards import Divided, attended_positions, divided_by_tensors, expert_number
from planner.workload.units import units_of

LAYER_AXES = (
    "tensor_parallel", "pipeline_parallel", "schedule", "stages", "sharding", "shard_group", "recompute", "offload",
)  # fmt: skip
"""Axes of networks without blocks of which they may have more than the default."""
ONE_BY_ONE, INTERLEAVED, V_SHAPED, NO_FLUSH = map(SCHEDULES.index, ("1f1b", "interleaved", "zero-bubble-v", "no-flush"))
_OF_LAYERS = [SCHEDULES.index(name) for name in ("gpipe", "1f1b", "zero-bubble")]
"""Schedules of networks without blocks."""
_AXES = {axis.name: axis for axis in AXES}
_MOST_TRIED = 4096
"""Degrees up to which the nearest lawful one is looked for."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule.

    ``axis``: whose value breaks it; ``words``: what the value must be; ``holds``: plans -> ndarray of bool.
    """

    axis: str
    words: str
    holds: Callable[[Configurations], BoolArray]


def rules_of(network: Network, framework: Framework) -> tuple[Rule, ...]:
    """Return the rules of plans that train a network in a framework, the first to be told first."""
    on_passes = _of_accumulation(framework)
    return (*_of_framework(framework), *_of_network(network, framework), *_of_schedules(), *on_passes)


def is_lawful(
    network: Network, framework: Framework, plans: Configurations, *, but_accumulation: bool = False
) -> BoolArray:
    """Return whether each plan obeys all rules, or all but those of accumulation; of the plans' shape."""
    left_out = len(_of_accumulation(framework)) if but_accumulation else 0
    return _obeys(rules_of(network, framework)[: -left_out or None], plans)


def accumulates(framework: Framework, plans: Configurations) -> BoolArray:
    """Return whether the schedule of each plan runs its micro-batches, of the plans' shape."""
    return _obeys(_of_accumulation(framework), plans)


def _obeys(rules: tuple[Rule, ...], plans: Configurations) -> BoolArray:
    every = np.ones(plans.shape, dtype=np.bool_)
    for rule in rules:
        every = every & rule.holds(plans)
    return every


def check_lawful(network: Network, framework: Framework, plans: Configurations) -> None:
    """Raise ParameterError for the first rule that the first plan which breaks one breaks, naming the nearest value."""
    for rule in rules_of(network, framework):
        holds = np.broadcast_to(rule.holds(plans), plans.shape)
        if holds.all():
            continue
        one = plans.rows.take(slice(at := int(np.argmin(holds)), at + 1))
        value = int(getattr(one, "schedule_run" if rule.axis == "schedule" else rule.axis).item())
        words = _AXES[rule.axis].words
        near = "" if words else _nearest(rule, one, value)
        raise ParameterError(
            rule.axis, rule.words, words[value] if words else value, f"the nearest {near}" if near else ""
        )


def why_unlawful(network: Network, framework: Framework, values: Mapping[str, Sequence[Any]]) -> str:
    """Return the sentence of a rule that plans break which have values of axes, and else defaults; empty: some obey."""
    codes = np.meshgrid(*([_AXES[name].code(one) for one in some] for name, some in values.items()), indexing="ij")
    plans = Configurations.having(**dict(zip(values, map(np.ravel, codes), strict=True)))
    if not is_lawful(network, framework, plans, but_accumulation=True).any():
        try:
            check_lawful(network, framework, plans)
        except ParameterError as error:
            option = f"--{_AXES[error.what].option.replace('_', '-')}"
            return str(ParameterError(option, error.rule, error.value, error.remedy))
    return ""


def check_allowed(framework: Framework, asked: Mapping[str, Sequence[Any]]) -> None:
    """Raise ParameterError where a framework allows none of the values of an axis, whatever else a plan has."""
    for rule in _of_framework(framework):
        values, axis = asked.get(rule.axis, ()), _AXES[rule.axis]
        codes = np.array([axis.words.index(one) if axis.words else one for one in values], dtype=np.int64)
        stages = 2 if rule.axis == "schedule" else 1  # one stage has no schedule
        if (
            codes.size
            and not rule.holds(Configurations.having(pipeline_parallel=stages).but(**{rule.axis: codes})).any()
        ):
            option = f"--{axis.option.replace('_', '-')}"
            raise ParameterError(option, rule.words, ",".join(map(str, values)))


def _nearest(rule: Rule, one: Configurations, value: int) -> str:
    axis = _AXES[rule.axis]
    values = np.arange(axis.least, axis.most + 1 if axis.most else _MOST_TRIED)
    lawful = values[np.broadcast_to(rule.holds(one.but(**{rule.axis: values})), values.shape)]
    below, above = lawful[lawful < value][-1:].tolist(), lawful[lawful > value][:1].tolist()
    near = [str(each) for each in (*below, *above)]
    if not near or rule.words.startswith(f"{near[0]} "):  # the rule says it
        return ""
    return f"{'is' if len(near) == 1 else 'are'} {' and '.join(near)}"


def is_told_apart(network: Network, framework: Framework, plans: Configurations) -> BoolArray:
    """Return whether no simpler plan does the same: no neutral axis off its default, no recompute of nothing."""
    differs = np.ones(plans.shape, dtype=np.bool_)
    for name, is_neutral in NEUTRAL.items():
        differs = differs & ((getattr(plans, name) == _AXES[name].code(_AXES[name].default)) | ~is_neutral(plans))
    keeps = (one for one in network.layers if one.kind.endswith("attention") and not one.attributes["fused"])
    if block_starts(network) and next(keeps, None) is None and framework.selective == "attention":
        differs = differs & (plans.recompute != RECOMPUTES.index("selective"))
    return np.asarray(differs)


def _multiple(whole: int, degree: IntArray) -> BoolArray:
    return np.asarray(whole % np.maximum(degree, 1) == 0)


def _of_framework(framework: Framework) -> Iterator[Rule]:
    kinds = framework.can
    for axis in AXES:
        if axis.ranks and axis.ranks not in kinds:
            yield Rule(axis.name, f"1 in framework {framework.variant}, which has none", _is(axis.name, 1))
    if "interleaved" not in framework.schedules:
        words = f"1 in framework {framework.variant}, which has no interleaved schedule"
        yield Rule("virtual_stages", words, lambda plans: plans.schedule_run != INTERLEAVED)
    if framework.schedules != SCHEDULES:
        codes = [SCHEDULES.index(name) for name in framework.schedules]
        words = f"{_any_of(framework.schedules)} in framework {framework.variant}"
        yield Rule("schedule", words, lambda plans: (plans.pipeline_parallel == 1) | np.isin(plans.schedule_run, codes))
    for place, stages, is_there in (
        ("", framework.shardings, lambda plans: plans.sharding >= 0),
        (" beside a pipeline", framework.shardings_in_pipeline, lambda plans: plans.pipeline_parallel > 1),
        (
            " where tensor or context ranks hold copies of weights",
            framework.shardings_in_layers,
            lambda plans: (plans.tensor_parallel * plans.context_parallel > 1) & (plans.weight_copies > 1),
        ),
    ):
        if not place or {*framework.shardings} - {*stages}:
            words = f"{_any_of(stages)}{place} in framework {framework.variant}"
            yield Rule("sharding", words, partial(_is_sharded, stages, is_there))
    for name, values in framework.lawful.items():
        places = [_AXES[name].words.index(value) for value in values]
        yield Rule(name, f"{_any_of(values)} in framework {framework.variant}", partial(_is_one_of, name, places))


def _is_sharded(values: Sequence[int], is_there: Callable[[Any], BoolArray], plans: Configurations) -> BoolArray:
    return np.isin(plans.sharding, values) | ~is_there(plans)


def _any_of(values: Sequence[object]) -> str:
    *others, last = map(str, values)
    return " or ".join(filter(None, (", ".join(others), last)))


def _is(axis: str, value: int) -> Callable[[Configurations], BoolArray]:
    return lambda plans: np.equal(getattr(plans, axis), value)


def _is_one_of(axis: str, codes: list[int], plans: Configurations) -> BoolArray:
    return np.isin(getattr(plans, axis), codes)


def _of_network(network: Network, framework: Framework) -> Iterator[Rule]:
    if not block_starts(network):
        yield from _of_layers(network, framework)
        return
    yield from _of_tensors(network, framework)
    number = most_stages(network)
    yield Rule("pipeline_parallel", f"at most the {number} layers", lambda plans: plans.pipeline_parallel <= number)
    yield from _of_even_stages(number, framework)
    words = f"a divisor of the {number} layers, at least one a chunk, with --stages best"
    yield Rule(
        "virtual_stages",
        words,
        lambda plans: (
            (plans.virtual_stages == 1)
            | (plans.stages != BEST_STAGES)
            | (_multiple(number, plans.virtual_stages) & (plans.pipeline_parallel * plans.virtual_stages <= number))
        ),
    )
    full = RECOMPUTES.index("full")
    yield Rule(
        "recompute_every",
        "1 unless --recompute is full",
        lambda plans: (plans.recompute_every == 1) | (plans.recompute == full),
    )
    yield Rule(
        "recompute_every",
        "at most the layers of a pipeline stage, whose inputs it groups",
        lambda plans: plans.recompute_every <= -(-number // plans.pipeline_parallel),
    )
    yield from _of_positions(network, framework)
    if experts := expert_number(network):
        yield Rule(
            "expert_parallel",
            f"a divisor of the {experts} experts and of data x context ranks",
            lambda plans: (
                _multiple(experts, plans.expert_parallel) & (plans.weight_copies % plans.expert_parallel == 0)
            ),
        )
    else:
        yield Rule("expert_parallel", f"1 for {network.name}, which has no experts", _is("expert_parallel", 1))


def starts_even(number: int, framework: Framework, plans: Configurations) -> BoolArray:
    """Return whether a framework starts pipelines of so many blocks with stages that are even, of the plans' shape."""
    chunks = plans.pipeline_parallel * plans.virtual_stages
    if framework.deals == "ends":  # two a rank, or as many as equal shares of so many blocks make
        places = number + 2
        shares = -(-places // -(-places // chunks))
        return np.asarray((chunks <= places) & ((plans.virtual_stages <= 2) | (shares == chunks)))
    if framework.deals == "blocks":
        return np.asarray((plans.virtual_stages == 1) | _multiple(number, chunks))
    each = -(-number // chunks)
    short = each * chunks - number
    return np.asarray((short <= 2) | ((short <= 2 * each) & (short < plans.pipeline_parallel)))


def _of_even_stages(number: int, framework: Framework) -> Iterator[Rule]:
    words = {
        "blocks": f"such that stages x virtual stages divide the {number} layers",
        "ends": f"such that stages x virtual stages are at most {number + 2}, two more than the layers",
        "equal": f"such that all {{}} but the first and last, which may have fewer, have as many of the {number} "
        f"layers in framework {framework.variant}, or with --stages best",
    }[framework.deals]
    of_chunks = ", and above 2 a rank as many as chunks of one size make" if framework.deals == "ends" else ""

    def holds(plans: Configurations, *, chunked: bool) -> BoolArray:
        others = (plans.stages == BEST_STAGES) | ((plans.virtual_stages > 1) != chunked)
        return np.asarray(others | starts_even(number, framework, plans))

    yield Rule("pipeline_parallel", words.format("stages"), partial(holds, chunked=False))
    yield Rule("virtual_stages", words.format("chunks") + of_chunks, partial(holds, chunked=True))


def _of_layers(network: Network, framework: Framework) -> Iterator[Rule]:
    """Yield the rules of a network whose layers a pipeline alone splits."""
    for axis in SPLIT_AXES:
        default = axis.words.index(str(axis.default)) if axis.words else int(axis.default or 0)
        if axis.name not in LAYER_AXES:
            words = f"{axis.default} for {network.name}, which is not made of attention blocks"
            yield Rule(axis.name, words, _is(axis.name, default))
    words = f"none or full for {network.name}, which is not made of attention blocks"
    yield Rule("recompute", words, lambda plans: np.isin(plans.recompute, (0, RECOMPUTES.index("full"))))
    words = (
        f"1 beside a pipeline, sharding, recompute or offload of {network.name}, which is not made of attention blocks"
    )

    def is_alone(plans: Configurations) -> BoolArray:
        others = (plans.sharding == 0) & (plans.recompute == 0) & (plans.offload == 0)
        return np.asarray((plans.tensor_parallel == 1) | (others & (plans.pipeline_parallel == 1)))

    yield Rule("tensor_parallel", words, is_alone)
    words = f"0, 1 or 2 beside a pipeline of {network.name}, whose stages are layers of unequal size"
    yield Rule("sharding", words, lambda plans: (plans.pipeline_parallel == 1) | (plans.sharding < WEIGHTS_SHARDED))
    words = f"gpipe, 1f1b or zero-bubble for {network.name}, which is not made of attention blocks"
    yield Rule("schedule", words, lambda plans: np.isin(plans.schedule_run, _OF_LAYERS))
    if framework.stages == "blocks":
        words = f"1 for {network.name} in framework {framework.variant}, whose stages are attention blocks"
        yield Rule("pipeline_parallel", words, _is("pipeline_parallel", 1))
    number = most_stages(network)
    words = f"at most the {number} layers of {network.name} with parameters"
    yield Rule("pipeline_parallel", words, lambda plans: plans.pipeline_parallel <= number)


def most_stages(network: Network) -> int:
    """Return how many stages a pipeline can have at most: blocks, of a network without any layers with parameters."""
    if starts := block_starts(network):
        return len(starts) - 1
    units: int = units_of(network, program(network)).sequence.size
    return units


def _of_tensors(network: Network, framework: Framework) -> Iterator[Rule]:
    for one in divided_by_tensors(network):
        yield Rule("tensor_parallel", one.words, partial(_splits, one, "tensor_parallel"))
        if one.is_shared and not framework.copies_keys:
            words = f"a divisor of the {one.whole} {one.what} in framework {framework.variant}, which copies none"
            yield Rule("tensor_parallel", words, partial(_splits, one._replace(is_shared=False), "tensor_parallel"))
    if framework.experts_take_sequence and expert_number(network):
        words = f"on where tensor ranks share experts in framework {framework.variant}"
        yield Rule(
            "sequence_parallel", words, lambda plans: (plans.sequence_parallel == 1) | (plans.tensor_parallel == 1)
        )
    for number in attended_positions(network):
        words = f"off unless tensor ranks divide the {number} positions of a context rank"
        yield Rule("sequence_parallel", words, partial(_shares, number))


def _splits(one: Divided, axis: str, plans: Configurations) -> BoolArray:
    return one.holds(getattr(plans, axis))


def _shares(positions: int, plans: Configurations) -> BoolArray:
    degree = plans.context_parallel * plans.tensor_parallel
    return np.asarray((plans.sequence_parallel == 0) | _multiple(positions, degree))


def _of_positions(network: Network, framework: Framework) -> Iterator[Rule]:
    if len(network.input_shape) > 2:
        yield Rule("context_parallel", f"1 for {network.name}, which reads images", _is("context_parallel", 1))
        return
    if framework.context == "heads":
        for one in divided_by_tensors(network):
            if one.what.startswith("heads"):
                yield Rule("context_parallel", one.words, partial(_splits, one, "context_parallel"))
    for number in attended_positions(network):
        words = f"such that twice the degree divides the {number} positions"

        def deals_out(plans: Configurations, sequence: int = number) -> BoolArray:  # an early part to each, and a late
            return np.asarray((plans.context_parallel == 1) | _multiple(sequence, 2 * plans.context_parallel))

        yield Rule("context_parallel", words, deals_out)


def _of_schedules() -> Iterator[Rule]:
    plain = ("gpipe", "zero-bubble", "zero-bubble-h2", "no-flush")
    codes = [SCHEDULES.index(name) for name in plain]
    yield Rule(
        "virtual_stages",
        f"1 in a {_any_of(plain)} schedule",
        lambda plans: (plans.virtual_stages == 1) | ~np.isin(plans.schedule_run, codes),
    )
    yield Rule(
        "virtual_stages",
        "2 in a zero-bubble-v schedule",
        lambda plans: (plans.virtual_stages == 2) | (plans.schedule_run != V_SHAPED) | (plans.pipeline_parallel == 1),
    )
    yield Rule(
        "virtual_stages",
        "above 1 in an interleaved schedule",
        lambda plans: (plans.virtual_stages > 1) | (plans.schedule_run != INTERLEAVED),
    )


def micro_batches_run(framework: Framework, plans: Configurations) -> tuple[IntArray, IntArray, IntArray]:
    """Return of what the micro-batches that the schedule of each plan runs are a multiple, their least and their most.

    Of the plans' shape; their accumulation is not looked at.
    """
    run, stages = plans.schedule_run, plans.pipeline_parallel
    is_v = run == V_SHAPED
    multiple = np.where((plans.virtual_stages == 1) | is_v, 1, stages)
    least = np.where(is_v & (stages > 1), 2 * stages, 1)
    if (idle := _idle_stages(framework)) is not None:
        least = np.where(run == ONE_BY_ONE, np.maximum(stages - idle, 1), least)
    return multiple, least, np.where(run == NO_FLUSH, 1, LARGEST_MINI_BATCH)


def _idle_stages(framework: Framework) -> int | None:
    """Return by how much the micro-batches of a 1f1b schedule may be fewer than its stages; None: by any number."""
    fewest = framework.fewest_micro_batches
    return None if fewest == "any" else FEWEST.index(fewest) - FEWEST.index("stages")


def _of_accumulation(framework: Framework) -> tuple[Rule, ...]:
    def run(plans: Configurations) -> tuple[IntArray, IntArray, IntArray]:
        return micro_batches_run(framework, plans)

    idle = _idle_stages(framework)
    stages = f"at least the pipeline stages{f' but {idle}' if idle else ''} in a 1f1b schedule"
    rules = (
        (
            "a multiple of the pipeline stages, with virtual stages",
            lambda plans: plans.accumulation_steps % run(plans)[0] == 0,
        ),
        (
            "at least twice the pipeline stages in a zero-bubble-v schedule",
            lambda plans: (plans.schedule_run != V_SHAPED) | (plans.accumulation_steps >= run(plans)[1]),
        ),
        (f"{stages} of framework {framework.variant}", lambda plans: plans.accumulation_steps >= run(plans)[1]),
        (
            "1 in a no-flush schedule, which updates after every micro-batch",
            lambda plans: plans.accumulation_steps <= run(plans)[2],
        ),
    )
    return tuple(Rule("accumulation_steps", *rule) for rule in rules)
