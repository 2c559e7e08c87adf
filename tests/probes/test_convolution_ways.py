from collections.abc import Iterator
from typing import Any

import pytest

from planner.catalog import find_network
from planner.domain.network import LayerCall
from planner.probes.bench import on_threads
from planner.probes.layer_points import first_of_another_way
from planner.probes.precisions import import_torch
from planner.workload.calls import distinct_calls

SUB_BATCHES = (1, 2, 3, 15, 16, 17, 32)


@pytest.fixture(scope="module")
def torch() -> Iterator[Any]:
    with on_threads(1):
        library = import_torch()
        if not library.backends.mkldnn.is_available():
            pytest.skip("this build of PyTorch has no oneDNN, so only one way")
        yield library


def way(torch: Any, work: dict[str, int]) -> str:
    """Return what PyTorch computes a convolution with."""
    x = torch.empty(work["images"], work["in_c"], work["in_h"], work["in_w"])
    weight = torch.empty(work["out_c"], work["in_c"] // work["groups"], work["k_h"], work["k_w"])
    stride, padding = [work["stride_h"], work["stride_w"]], [work["pad_h"], work["pad_w"]]
    transposed = False
    choose = torch._C._select_conv_backend  # noqa: SLF001 - as PyTorch's own tests of the choice do
    return str(choose(x, weight, None, stride, padding, [1, 1], transposed, [0, 0], work["groups"], None))


def convolutions(name: str) -> list[LayerCall]:
    calls = distinct_calls([find_network(name)])
    return [call for call in calls if (call.kind, call.direction) == ("convolution", "forward")]


@pytest.mark.parametrize("name", ["mobilenet-v2", "googlenet", "resnet50", "inception-v3", "alexnet"])
def test_ways_change_where_pytorch_changes_them(torch: Any, name: str) -> None:
    for call in convolutions(name):
        ways = [way(torch, call.at(n)) for n in SUB_BATCHES]
        changes = [n for n, before, after in zip(SUB_BATCHES[1:], ways, ways[1:], strict=False) if before != after]
        first = first_of_another_way(call.at(1))
        assert changes == ([first] if first else []), call.name


def test_networks_have_convolutions_of_every_way() -> None:
    found = {first_of_another_way(call.at(1)) for call in convolutions("googlenet")}
    assert found == {0, 2, 16}
