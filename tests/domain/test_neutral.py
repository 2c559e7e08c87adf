"""Values that do nothing for a plan are the default: two ways to say a plan are one plan."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from planner.domain.axes import AXES
from planner.domain.configuration import NEUTRAL, Configuration, Configurations

BY_NAME = {axis.name: axis for axis in AXES}
DEGREES = ("tensor_parallel", "context_parallel", "pipeline_parallel")


def values(name: str) -> st.SearchStrategy[Any]:
    axis = BY_NAME[name]
    return st.sampled_from(axis.words) if axis.words else st.integers(axis.least, axis.most or 4)


@given(
    st.fixed_dictionaries({name: st.sampled_from((1, 2)) for name in DEGREES}),
    st.integers(1, 3),
    st.fixed_dictionaries({name: values(name) for name in NEUTRAL}),
)
def test_a_neutral_value_is_the_default_and_any_other_is_kept(
    degrees: dict[str, Any], nodes: int, some: dict[str, Any]
) -> None:
    one = Configuration(nodes=nodes, gpus_per_node=8, sub_batch=1, **degrees, **some)
    replicas = one.data_parallel * one.context_parallel
    does = {
        "virtual_stages": one.pipeline_parallel > 1,
        "schedule": one.pipeline_parallel > 1,
        "stages": one.pipeline_parallel > 1,
        "sequence_parallel": one.tensor_parallel > 1,
        "sharding": replicas > 1,
        "shard_group": replicas > 1 and some["sharding"] > 0 and nodes > 1,
    }
    kept = {name: some[name] if does[name] else BY_NAME[name].default for name in NEUTRAL}
    assert {name: getattr(one, name) for name in NEUTRAL} == kept
    assert one == Configuration(nodes=nodes, gpus_per_node=8, sub_batch=1, **degrees, **kept)
    assert Configurations.of([one]).one(0) == one


def test_a_plan_on_one_gpu_has_one_form() -> None:
    plain = Configuration(nodes=1, gpus_per_node=1, sub_batch=4)
    for name in NEUTRAL:
        axis = BY_NAME[name]
        for value in axis.words or range(axis.least, (axis.most or 3) + 1):
            values_of: dict[str, Any] = {name: value}
            assert Configuration(nodes=1, gpus_per_node=1, sub_batch=4, **values_of) == plain
