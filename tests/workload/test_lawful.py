"""Which degrees a network and a framework allow: by hand, and against each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.catalog import find_framework, find_network
from planner.domain.axes import SCHEDULES
from planner.domain.configuration import Configurations
from planner.domain.framework import Framework
from planner.domain.split import BEST_STAGES, RECOMPUTES
from planner.errors import ParameterError
from planner.workload.lawful import check_allowed, check_lawful, is_lawful, is_told_apart, rules_of

GPT = find_network("gpt:layers=12,hidden=768,heads=12,sequence=1024,vocabulary=50257")
GROUPED = find_network("llama:layers=6,hidden=512,heads=16,kv_heads=4,ffn=1536,sequence=96")
MOE = find_network("moe:layers=4,hidden=64,heads=4,sequence=32,vocabulary=128,experts=8,expert_ffn=64")
VIT, CNN = find_network("vit-b16"), find_network("alexnet")
ANY = Framework("own")
CANNOT = Framework("narrow", can=("tensor",), shardings=(0, 2), shardings_in_pipeline=(0,))
PLAIN = Framework("plain", schedules=("gpipe", "1f1b"))
GPIPE, INTERLEAVED, V_SHAPED, NO_FLUSH = map(SCHEDULES.index, ("gpipe", "interleaved", "zero-bubble-v", "no-flush"))


SOME_LAYER = "at most the layers of a pipeline stage, whose inputs it groups"
HEADS = "a divisor of the 12 heads of layer layer1.attention.core"
BESIDE_EXPERTS = "a divisor of the 8 experts and of data x context ranks"
POSITIONS = "such that twice the degree divides the 1024 positions"
IS_CNN = "for alexnet, which is not made of attention blocks"


@pytest.mark.parametrize(
    ("network", "values", "rule", "got"),
    [
        (GPT, {"tensor_parallel": 5}, HEADS, "5; the nearest are 4 and 6"),
        (GPT, {"tensor_parallel": 24}, HEADS, "24; the nearest is 12"),
        (GROUPED, {"pipeline_parallel": 7}, "at most the 6 layers", "7; the nearest is 6"),
        (GPT, {"virtual_stages": 2, "pipeline_parallel": 4, "accumulation_steps": 4},
         "such that stages x virtual stages divide the 12 layers", "2; the nearest are 1 and 3"),
        (GPT, {"virtual_stages": 2, "pipeline_parallel": 2, "schedule": GPIPE, "accumulation_steps": 2},
         "1 in a gpipe, zero-bubble, zero-bubble-h2 or no-flush schedule", "2"),
        (GPT, {"virtual_stages": 1, "pipeline_parallel": 2, "schedule": INTERLEAVED},
         "above 1 in an interleaved schedule", "1; the nearest is 2"),
        (GPT, {"accumulation_steps": 6, "pipeline_parallel": 4, "virtual_stages": 3},
         "a multiple of the pipeline stages, with virtual stages", "6; the nearest are 4 and 8"),
        (GPT, {"virtual_stages": 3, "pipeline_parallel": 2, "schedule": V_SHAPED},
         "2 in a zero-bubble-v schedule", "3"),
        (GPT, {"accumulation_steps": 5, "pipeline_parallel": 3, "virtual_stages": 2, "schedule": V_SHAPED},
         "at least twice the pipeline stages in a zero-bubble-v schedule", "5; the nearest is 6"),
        (GPT, {"accumulation_steps": 4, "pipeline_parallel": 4, "schedule": NO_FLUSH},
         "1 in a no-flush schedule, which updates after every micro-batch", "4"),
        (GPT, {"context_parallel": 1024}, POSITIONS, "1024; the nearest is 512"),
        (GPT, {"context_parallel": 2048}, POSITIONS, "2048; the nearest is 512"),
        (GPT, {"expert_parallel": 2}, "1 for gpt:.*, which has no experts", "2"),
        (GPT, {"recompute_every": 2}, "1 unless --recompute is full", "2"),
        (GPT, {"recompute_every": 13, "recompute": RECOMPUTES.index("full")}, SOME_LAYER, "13; the nearest is 12"),
        (GPT, {"recompute_every": 4, "recompute": RECOMPUTES.index("full"), "pipeline_parallel": 5}, SOME_LAYER,
         "4; the nearest is 3"),
        (MOE, {"expert_parallel": 3, "data_parallel": 6}, BESIDE_EXPERTS, "3; the nearest is 2"),
        (MOE, {"expert_parallel": 8, "data_parallel": 4}, BESIDE_EXPERTS, "8; the nearest is 4"),
        (VIT, {"context_parallel": 2}, "1 for vit-b16, which reads images", "2"),
        (GROUPED, {"sequence_parallel": 1, "tensor_parallel": 16, "context_parallel": 4},
         "off unless tensor ranks divide the 96 positions of a context rank", "'on'"),
        (CNN, {"tensor_parallel": 2, "sharding": 1},
         "1 beside a pipeline, sharding, recompute or offload of alexnet, which is not made of attention blocks", "2"),
        (CNN, {"context_parallel": 2}, f"1 {IS_CNN}", "2"),
        (CNN, {"recompute": RECOMPUTES.index("selective")}, f"none or full {IS_CNN}", "'selective'"),
        (CNN, {"sharding": 3, "pipeline_parallel": 2},
         "0, 1 or 2 beside a pipeline of alexnet, whose stages are layers of unequal size", "3; the nearest is 2"),
    ],
)  # fmt: skip
def test_the_first_rule_that_is_broken_is_told(network: Any, values: dict[str, int], rule: str, got: str) -> None:
    refused(network, ANY, values, rule, got)


@pytest.mark.parametrize(
    ("framework", "values", "rule", "got"),
    [
        (CANNOT, {"pipeline_parallel": 2}, "1 in framework narrow, which has none", "2"),
        (PLAIN, {"virtual_stages": 2, "pipeline_parallel": 2, "schedule": INTERLEAVED, "accumulation_steps": 2},
         "1 in framework plain, which has no interleaved schedule", "2"),
        (PLAIN, {"schedule": NO_FLUSH, "pipeline_parallel": 2}, "gpipe or 1f1b in framework plain", "'no-flush'"),
        (CANNOT, {"sharding": 3}, "0 or 2 in framework narrow", "3; the nearest is 2"),
        (CANNOT, {"sharding": 1}, "0 or 2 in framework narrow", "1"),
        (Framework("own", shardings_in_pipeline=(0, 1)), {"sharding": 3, "pipeline_parallel": 2},
         "0 or 1 beside a pipeline in framework own", "3; the nearest is 1"),
        (Framework("own", shardings_in_layers=(2, 3)), {"sharding": 0, "tensor_parallel": 2, "data_parallel": 2},
         "2 or 3 where tensor or context ranks hold copies of weights in framework own", "0"),
        (Framework("own", lawful={"shard_group": ("all",)}), {"shard_group": 1, "data_parallel": 16, "sharding": 1},
         "all in framework own", "'node'"),
        (Framework("own", lawful={"recompute": ("none", "full")}), {"recompute": RECOMPUTES.index("selective")},
         "none or full in framework own", "'selective'"),
        (Framework("own", fewest_micro_batches="stages"), {"accumulation_steps": 3, "pipeline_parallel": 4},
         "at least the pipeline stages in a 1f1b schedule of framework own", "3; the nearest is 4"),
        (Framework("own", fewest_micro_batches="stages - 1"), {"accumulation_steps": 2, "pipeline_parallel": 4},
         "at least the pipeline stages but 1 in a 1f1b schedule of framework own", "2; the nearest is 3"),
    ],
)  # fmt: skip
def test_a_framework_is_named_that_cannot(framework: Framework, values: dict[str, int], rule: str, got: str) -> None:
    refused(GPT, framework, values, rule, got)


ENDS = "such that stages x virtual stages are at most 128"
OF_ONE_SIZE = ", and above 2 a rank as many as chunks of one size make"
EQUAL = (
    "such that all {} but the first and last, which may have fewer, have as many of the 126 layers in framework "
    "megatron-lm, or with --stages best"
)
MEGATRON, TITAN = find_framework("megatron-lm"), find_framework("torchtitan")


def test_degrees_that_a_program_does_not_start_are_refused_by_its_rule() -> None:
    """Key and value heads below tensor ranks (pytorch/torchtitan 2577), Ulysses by heads, experts of Megatron-LM."""
    few = find_network("llama:layers=8,hidden=2048,heads=16,kv_heads=2,ffn=5632")
    for name in ("torchtitan", "nanotron"):
        words = f"a divisor of the 2 heads of keys and values in framework {name}, which copies none"
        refused(few, find_framework(name), {"tensor_parallel": 4}, words, "4; the nearest is 2")
    check_lawful(few, MEGATRON, Configurations.having(tensor_parallel=4))
    heads = "a divisor of the 12 heads of layer layer1.attention.core"
    refused(GPT, find_framework("deepspeed"), {"context_parallel": 8}, heads, "8; the nearest are 6 and 12")
    words = "on where tensor ranks share experts in framework megatron-lm"
    refused(MOE, MEGATRON, {"sequence_parallel": 0, "tensor_parallel": 2}, words, "'off'")
    check_lawful(MOE, MEGATRON, Configurations.having(tensor_parallel=2, sequence_parallel=1))


@pytest.mark.parametrize(
    ("layers", "stages", "chunks"),
    [(126, 8, 8), (126, 16, 1), (126, 16, 4), (126, 9, 7), (126, 16, 8), (94, 8, 12), (94, 16, 1), (94, 4, 12),
     (94, 12, 1), (61, 16, 2), (61, 16, 1)],
)  # fmt: skip
def test_layouts_with_ends_counted_or_given_by_stage_start_in_megatron(layers: int, stages: int, chunks: int) -> None:
    """Llama 3.1 405B has 126 layers, Qwen 3 235B 94, DeepSeek-V3 61."""
    network = find_network(f"llama:layers={layers},hidden=512,heads=16,kv_heads=8,ffn=1536,sequence=96")
    values = {"pipeline_parallel": stages, "virtual_stages": chunks, "accumulation_steps": 2 * stages}
    check_lawful(network, MEGATRON, Configurations.having(**values))


@pytest.mark.parametrize(
    ("framework", "values", "rule", "got"),
    [
        (MEGATRON, {"pipeline_parallel": 45},
         EQUAL.format("stages"), "45; the nearest are 44 and 63"),
        (MEGATRON, {"virtual_stages": 5, "pipeline_parallel": 8, "accumulation_steps": 8},
         EQUAL.format("chunks"), "5; the nearest are 4 and 8"),
        (TITAN, {"virtual_stages": 17, "pipeline_parallel": 8, "accumulation_steps": 8},
         f"{ENDS}, two more than the layers{OF_ONE_SIZE}", "17; the nearest is 16"),
        (TITAN, {"virtual_stages": 10, "pipeline_parallel": 8, "accumulation_steps": 8},
         f"{ENDS}, two more than the layers{OF_ONE_SIZE}", "10; the nearest are 8 and 16"),
    ],
)  # fmt: skip
def test_pipelines_that_a_program_does_not_start_are_refused_by_its_rule(
    framework: Framework, values: dict[str, int], rule: str, got: str
) -> None:
    refused(find_network("llama3-405b"), framework, values, rule, got)
    if "virtual_stages" not in values:
        check_lawful(find_network("llama3-405b"), framework, Configurations.having(**values, stages=BEST_STAGES))


def refused(network: Any, framework: Framework, values: dict[str, int], rule: str, got: str) -> None:
    """Check that a plan is refused for the first of its values."""
    plans = Configurations.having(**values)
    assert not is_lawful(network, framework, plans)
    with pytest.raises(ParameterError, match=f"^{next(iter(values))} must be {rule}, got {got}$"):
        check_lawful(network, framework, plans)


def test_of_several_plans_the_one_that_breaks_a_rule_is_told() -> None:
    plans = Configurations.having(tensor_parallel=np.array([1, 2, 5, 7]), pipeline_parallel=np.array([1, 12, 12, 12]))
    assert is_lawful(GPT, ANY, plans).tolist() == [True, True, False, False]
    with pytest.raises(ParameterError, match="got 5"):
        check_lawful(GPT, ANY, plans)


DEGREES = st.fixed_dictionaries(
    {
        "tensor_parallel": st.integers(1, 20),
        "context_parallel": st.integers(1, 8),
        "expert_parallel": st.integers(1, 9),
        "pipeline_parallel": st.integers(1, 14),
        "virtual_stages": st.integers(1, 4),
        "data_parallel": st.integers(1, 8),
        "accumulation_steps": st.integers(1, 12),
        "sharding": st.integers(0, 3),
        "sequence_parallel": st.integers(0, 1),
        "schedule": st.integers(0, len(SCHEDULES) - 1),
        "recompute": st.integers(0, 2),
        "recompute_every": st.integers(1, 14),
    }
)


@given(st.sampled_from((GPT, GROUPED, MOE, CNN)), st.sampled_from((ANY, CANNOT, PLAIN)), DEGREES)
def test_a_plan_is_refused_where_it_is_unlawful_and_a_nearest_value_mends_the_rule(
    network: Any, framework: Framework, values: dict[str, int]
) -> None:
    plans = Configurations.having(**values)
    if is_lawful(network, framework, plans):
        check_lawful(network, framework, plans)
        return
    with pytest.raises(ParameterError) as caught:
        check_lawful(network, framework, plans)
    error = caught.value
    rule = next(one for one in rules_of(network, framework) if not one.holds(plans).all())
    assert (error.what, error.rule) == (rule.axis, rule.words)
    for near in (int(word) for word in error.remedy.split() if word.isdigit()):
        assert rule.holds(plans.but(**{rule.axis: near})).all()
        between = range(min(near, values[rule.axis]) + 1, max(near, values[rule.axis]))
        assert not any(rule.holds(plans.but(**{rule.axis: other})).all() for other in between)


def test_plans_that_do_the_same_as_simpler_ones_are_left_out() -> None:
    fused = find_network("gpt:layers=12,hidden=768,heads=12,sequence=1024,attention=fused")
    for values, is_apart in (
        ({"sharding": 1}, False), ({"sharding": 1, "data_parallel": 2}, True),
        ({"shard_group": 1, "data_parallel": 2}, False),
        ({"shard_group": 1, "sharding": 1, "data_parallel": 8}, False),
        ({"shard_group": 1, "sharding": 1, "data_parallel": 16}, True),
        ({"sequence_parallel": 1}, False), ({"sequence_parallel": 1, "tensor_parallel": 2}, True),
        ({"virtual_stages": 2}, False), ({"stages": 1}, False), ({"schedule": GPIPE}, False),
        ({"recompute": RECOMPUTES.index("selective")}, True),
    ):  # fmt: skip
        assert is_told_apart(GPT, ANY, Configurations.having(**values)) == is_apart, values
    selective = Configurations.having(recompute=RECOMPUTES.index("selective"))
    assert not is_told_apart(fused, ANY, selective)
    assert is_told_apart(fused, Framework("own", selective="second products"), selective)


@pytest.mark.parametrize(
    ("framework", "asked", "sentence"),
    [
        (CANNOT, {"sharding": (3,)}, "--sharding must be 0 or 2 in framework narrow, got '3'"),
        (CANNOT, {"context_parallel": (2, 4)}, "--context must be 1 in framework narrow, which has none, got '2,4'"),
        (
            PLAIN,
            {"schedule": ("interleaved",)},
            "--schedule must be gpipe or 1f1b in framework plain, got 'interleaved'",
        ),
    ],
)
def test_values_that_a_framework_never_allows_are_refused_by_its_rule(
    framework: Framework, asked: dict[str, tuple[Any, ...]], sentence: str
) -> None:
    with pytest.raises(ParameterError) as caught:
        check_allowed(framework, asked)
    assert str(caught.value) == sentence
    check_allowed(ANY, asked)
    check_allowed(
        framework, {name: (*values, {"schedule": "1f1b", "sharding": 2}.get(name, 1)) for name, values in asked.items()}
    )
