from __future__ import annotations

import numpy as np
import pytest

from planner.catalog import find_framework, find_network
from planner.domain.arrays import divisors
from planner.domain.axes import SCHEDULES
from planner.domain.configuration import Configurations
from planner.domain.framework import GENERIC, Framework
from planner.domain.network import Network
from planner.domain.split import RECOMPUTES
from planner.errors import ParameterError
from planner.workload.lawful import check_lawful, is_lawful
from planner.workload.memory import Memory
from planner.workload.what_fits import CHANGES, TERMS, least_gpus, lowest_plans, what_fits
from tests.workload.closed_memory import stage_parameters
from tests.workload.closed_transformer import parameters, record_of
from tests.workload.conftest import gpt, gpt_network, ledger, network_of

FULL = RECOMPUTES.index("full")
RULES = Framework("rules", pads_vocabulary=True, loss="parallel", fuses=("activation",))
STATE_BYTES = 16
"""Of a parameter, in mixed precision with Adam (Rajbhandari et al. 2020, arXiv:1910.02054)."""


def rules_of(network: Network | str) -> Memory:
    return ledger(network, RULES)


GPT3_NETWORK = gpt_network(96, 12288, 96)
CASES: dict[str, tuple[Network | str, Configurations]] = {
    "gpt3": (GPT3_NETWORK, Configurations.having(
        sub_batch=6, tensor_parallel=4, pipeline_parallel=8, data_parallel=8, accumulation_steps=48,
    )),
    "llama": ("llama3-70b", Configurations.having(sub_batch=4, data_parallel=64)),
    "moe": ("mixtral", Configurations.having(sub_batch=4, data_parallel=64, expert_parallel=8, accumulation_steps=3)),
    "t5": ("t5", Configurations.having(sub_batch=512, data_parallel=np.array([2]))),
    "interleaved": (GPT3_NETWORK, Configurations.having(
        tensor_parallel=8, pipeline_parallel=8, virtual_stages=3, schedule=SCHEDULES.index("interleaved"),
        data_parallel=4, accumulation_steps=16,
    )),
    "in a V": (GPT3_NETWORK, Configurations.having(
        tensor_parallel=8, pipeline_parallel=8, virtual_stages=2, schedule=SCHEDULES.index("zero-bubble-v"),
        sub_batch=2, data_parallel=4, accumulation_steps=16,
    )),
    "without a flush": (GPT3_NETWORK, Configurations.having(
        tensor_parallel=4, pipeline_parallel=8, schedule=SCHEDULES.index("no-flush"), sub_batch=6, data_parallel=8,
    )),
}  # fmt: skip


def samples(plan: Configurations) -> int:
    return int((plan.sub_batch * plan.accumulation_steps * plan.data_parallel).item())


@pytest.mark.parametrize(("of", "plan"), CASES.values(), ids=CASES)
@pytest.mark.parametrize("capacity", [16e9, 80e9])
def test_each_change_is_what_it_says(of: Network | str, plan: Configurations, capacity: float) -> None:
    memory = rules_of(of)
    before = memory.fullest(plan)
    found = what_fits(memory, plan, capacity, most_nodes=512)
    assert found.missing_bytes == before.total - capacity
    assert found.stage == before.stage
    terms = {name: float(getattr(before, name).item()) for name in TERMS}
    assert sum(terms.values()) == pytest.approx(before.total.item())
    assert [size for _, size in found.largest] == sorted(terms.values(), reverse=True)[:3]
    assert all(terms[name] == size for name, size in found.largest)
    names = [change.name for change in found.changes]
    assert names == [name for name in CHANGES if name in names]
    for change in found.changes:
        assert change.fits == (before.total - change.saved_bytes <= capacity)
        if change.name not in ("fused attention", "fused loss", "8-bit optimizer"):
            assert change.saved_bytes == before.total - memory.fullest(change.plan).total
        if change.name != "more nodes":
            assert change.plan.gpus == plan.gpus
            assert samples(change.plan) == samples(plan)
        check_lawful(memory.network, GENERIC, change.plan)


def test_changes_of_one_plan() -> None:
    of, plan = CASES["gpt3"]
    changes = {one.name: one for one in what_fits(rules_of(of), plan, 80e9, most_nodes=200).changes}
    assert list(changes) == list(CHANGES)
    assert changes["tensor degree in a node"].value == 8
    assert changes["tensor degree beyond a node"].value == 32
    assert changes["more nodes"].value == 128
    narrow = Framework("other", can=("tensor",), shardings_in_pipeline=(0, 1))
    without = {one.name for one in what_fits(rules_of(of), plan, 80e9, framework=narrow, most_nodes=1).changes}
    missing = ["sharding 2", "sharding 3", "pipeline degree", "context degree", "more nodes"]
    assert [name for name in CHANGES if name not in without] == missing
    alone = Framework("alone", shardings=(0,), shardings_in_pipeline=(0,))
    kept = {one.name for one in what_fits(rules_of(of), plan, 80e9, framework=alone, most_nodes=200).changes}
    assert "more nodes" not in kept, "which help by what they share alone"
    llama, whole = CASES["llama"]
    names = {one.name for one in what_fits(rules_of(llama), whole, 80e9).changes}
    assert names.isdisjoint({"sequence parallelism", "fused attention", "selective recompute"})


def test_smaller_sub_batch_by_trying_all() -> None:
    plan = Configurations.having(sub_batch=24, accumulation_steps=5, data_parallel=8, recompute=FULL)
    for capacity in (15e9, 20e9, 30e9, 60e9):
        found = next(c for c in what_fits(rules_of("t5"), plan, capacity).changes if c.name == "smaller sub-batch")
        tried = {b: plan.but(sub_batch=b, accumulation_steps=120 // b) for b in divisors(120) if b < 24}
        fitting = [b for b, other in tried.items() if rules_of("t5").fullest(other).total <= capacity]
        assert found.value == max(fitting, default=1)


def test_the_first_that_fits() -> None:
    of = gpt_network(24, 2048, 16)
    plan = Configurations.having(sub_batch=2, tensor_parallel=2, data_parallel=4)
    needed = float(rules_of(of).fullest(plan).total)
    assert what_fits(rules_of(of), plan, needed).missing_bytes == 0
    saved = {one.name: one.saved_bytes for one in what_fits(rules_of(of), plan, needed).changes}
    most = max(saved["sequence parallelism"], saved["fused attention"])
    short = what_fits(rules_of(of), plan, needed - most - 1)
    fitting = [change.name for change in short.changes if change.fits]
    assert fitting
    assert fitting[0] not in {"sequence parallelism", "fused attention"}
    enough = [change.name for change in what_fits(rules_of(of), plan, needed - 1).changes if change.fits]
    assert enough[0] == "sequence parallelism"


def least_memory(ledger: Memory, plans: Configurations, gpus: int) -> tuple[float, Configurations] | None:
    """Return the least bytes that :func:`lowest_plans` take on so many GPUs, and the plan; None: no replicas divide."""
    replica = plans.replica_gpus
    data = gpus // replica
    lawful = (gpus % replica == 0) & (data % plans.data_parallel == 0) & (data > 0)
    if not lawful.any():
        return None
    total = ledger.fullest(plans.but(data_parallel=np.maximum(data, 1))).total
    best = int(np.argmin(np.where(lawful, total, np.inf)))
    return float(total[best]), plans.but(data_parallel=data).take(slice(best, best + 1))


@pytest.mark.parametrize("name", ["llama", "deepseek", "gpt3"])
def test_least_gpus_by_trying_all(name: str) -> None:
    memory = rules_of(GPT3_NETWORK if name == "gpt3" else name)
    lowest = lowest_plans(memory.network, 8, tensor_most=8)
    for capacity in (16e9, 40e9, 80e9):
        found = least_gpus(memory, lowest, capacity, 8)
        assert found is not None
        assert found >= STATE_BYTES * parameters(record_of(memory.network)) / capacity

        def fits(gpus: int, capacity: float = capacity) -> bool:
            least = least_memory(memory, lowest, gpus)
            return least is not None and least[0] <= capacity

        counts = [*range(1, 9), *range(16, found + 1, 8)]
        fitting = [gpus for gpus in counts if fits(gpus)]
        assert not any(gpus < found for gpus in fitting)
        # On the nodes that hold them; other degrees of data parallelism may leave some of their GPUs empty.
        assert any(fits(gpus) for gpus in range(max(1, found - 7), found + 1))


def test_least_memory_names_its_plan() -> None:
    memory = rules_of("mixtral")
    found = least_memory(memory, lowest_plans(memory.network, 8), 64)
    assert found is not None
    least, plan = found
    assert plan.gpus == 64
    assert memory.fullest(plan).total == least
    assert least_memory(memory, lowest_plans(memory.network, 8).but(pipeline_parallel=7), 64) is None


def test_a_network_that_fits_nowhere() -> None:
    network = network_of("llama:sequence=999999,hidden=999936,heads=8,layers=32")
    assert least_gpus(rules_of(network), lowest_plans(network, 8), 80e9, 8) is None


def test_stages_do_not_lower_kept_inputs() -> None:
    of = gpt(96, 12288, 96)
    p = np.array([2, 4, 8, 16])
    plans = Configurations.having(tensor_parallel=8, pipeline_parallel=p, accumulation_steps=64, recompute=FULL)
    found = rules_of(GPT3_NETWORK).fullest(plans)
    inputs = found.activations - p * 2048 * (12288 + 8)  # masks and numbers of tokens
    np.testing.assert_array_equal(inputs, 96 * 2 * 2048 * 12288)
    state = found.weights + found.gradients + found.optimizer
    np.testing.assert_array_equal(state, 16 * stage_parameters(of, plans, np.array(0), padded=True).total)


def test_divisors() -> None:
    assert [divisors(one) for one in (1, 12, 49, 97)] == [[1], [1, 2, 3, 4, 6, 12], [1, 7, 49], [1, 97]]


def test_one_plan_at_a_time() -> None:
    with pytest.raises(ParameterError, match="plans"):
        what_fits(rules_of(GPT3_NETWORK), Configurations.having(sub_batch=np.array([1, 2])), 80e9)


def test_changes_of_a_plan_that_its_program_starts_start_too() -> None:
    """Torchtitan copies no heads of keys and values, nanotron recomputes whole layers alone."""
    network, plan = (
        "llama:layers=8,hidden=2048,heads=16,kv_heads=2,ffn=5632,attention=unfused",
        Configurations.having(data_parallel=16),
    )
    for name, missing in (("torchtitan", "tensor degree beyond a node"), ("nanotron", "selective recompute")):
        framework = find_framework(name)
        changes = what_fits(rules_of(network), plan, 1e9, framework=framework).changes
        assert all(is_lawful(find_network(network), framework, one.plan) for one in changes)
        assert missing not in {one.name for one in changes}
        assert max((one.value for one in changes if one.name.startswith("tensor")), default=2) == 2
