"""Layers whose calls planner calibrate does not time as they are: a sentence each, that names them and the limit."""

from dataclasses import replace

from planner.domain.layers.record import INPUT, Layer
from planner.domain.network import Network
from planner.networks.zoo import build
from planner.probes.layer_points import GPU_SUB_BATCHES, Extent
from planner.sessions.measure import enough_s, grouped, left_out, never_timed
from planner.workload.calls import distinct_calls

END = "; not timed as in the network, but predicted by a fit to other kernels"
WIDE = Network("wide", (1 << 20,), (Layer("norm", "layer_norm", (INPUT,)), Layer("relu", "activation", ("norm",))))
CALLS = [call for call in distinct_calls([WIDE]) if call.kind == "activation"]


def test_each_layer_has_one_sentence_with_what_it_needs_and_the_limit() -> None:
    networks = [build(name, {}) for name in ("gpt", "vgg16", "gpt2")]
    said = sorted(left_out(distinct_calls(networks), networks, Extent()))
    of_loss = "softmax (forward, backward data) have up to 1,571 MiB of operands and results at a sub-batch of 2"
    assert said == [
        f"layer embedding of gpt: update has 901 MiB of operands and results, where one call may have 640 MiB{END}",
        f"layer fc6 of vgg16: update has 1,568 MiB of operands and results, where one call may have 640 MiB{END}",
        f"layer loss of gpt: {of_loss}, where one call may have 640 MiB{END}",
    ]


def test_several_kernels_of_a_layer_are_told_together_with_the_most_that_one_needs() -> None:
    small = Extent(operand_elements=1, elements=1, alone_elements=1 << 20)
    (said,) = left_out(CALLS, [WIDE], small)
    needed = "activation (forward, backward data) have up to 32 MiB of operands and results at a sub-batch of 2"
    assert said == f"layer relu of wide: {needed}, where one call may have 4 MiB{END}"


def test_layers_that_an_optimizer_keeps_out_share_a_sentence() -> None:
    network = replace(build("vgg16", {}), optimizer="adam-8bit")
    (said,) = left_out(distinct_calls([network]), [network], Extent())
    assert "and 10 more layers): update is of optimizer adam-8bit, which is not part of PyTorch" in said


def test_two_layers_are_one_and_one_more_layer() -> None:
    layers = [Layer(name, "linear", (INPUT,), {"features": 4 + at}) for at, name in enumerate(("one", "two"))]
    network = Network("both", (8,), (*layers,), optimizer="adam-8bit")
    (said,) = left_out(distinct_calls([network]), [network], Extent())
    assert " of both (and 1 more layer): update is of optimizer adam-8bit" in said


def test_what_is_timed_in_fp32_alone_is_told_with_the_precisions_that_it_lacks() -> None:
    network = build("vgg16", {})
    calls = [call for call in distinct_calls([network]) if call.kind == "gemm"]
    limit = "operands and results at a sub-batch of 2, where one call may have 384 MiB"
    assert list(left_out(calls, [network], Extent(precisions=("fp32", "bf16")))) == [
        f"layer fc6 of vgg16: gemm (all three directions) in bf16 have up to 392 MiB of {limit}{END}"
    ]
    said = list(left_out(calls, [network], Extent(precisions=("fp32", "bf16", "int8"))))
    assert [one.partition(" MiB")[0] for one in said] == [
        "layer fc6 of vgg16: gemm (forward, backward data) in bf16, int8 have up to 392",
        "layer fc6 of vgg16: gemm (backward weight) in bf16 has 392",  # PyTorch has none in int8
    ]


def test_a_gpu_says_its_own_limits() -> None:
    gpu = Extent(GPU_SUB_BATCHES, operand_elements=1 << 19, elements=1 << 30, on_gpu=True)
    (said,) = left_out(CALLS, [WIDE], gpu)
    assert "have up to 4 MiB of one operand at a sub-batch of 1, where one call may have 2 MiB" in said
    assert not list(left_out(CALLS, [WIDE], replace(gpu, operand_elements=1 << 21)))


def test_calls_that_no_budget_is_enough_for_are_counted() -> None:
    assert [never_timed(build(name, {}), Extent()) for name in ("gpt", "vgg16", "resnet18")] == [3, 1, 0]
    both = Extent(precisions=("fp32", "bf16"))
    assert [never_timed(build("vgg16", {}), both, precision) for precision in both.precisions] == [1, 4]


def test_a_budget_that_was_too_short_becomes_the_default_at_least() -> None:
    assert [enough_s(budget_s) for budget_s in (5.0, 59.0, 60.0, 300.0)] == [60.0, 60.0, 120.0, 600.0]


def test_kinds_of_the_same_directions_stand_together() -> None:
    assert (
        grouped([("gemm", "forward"), ("softmax", "forward"), ("update", "update")])
        == "gemm, softmax (forward); update"
    )
