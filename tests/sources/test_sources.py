"""Which entry serves what, and what is refused."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from planner.catalog import calibrations_for, find_cluster, find_network
from planner.domain.calibration import Calibration, Entry
from planner.domain.cluster import Accelerator, Cluster
from planner.domain.configuration import Configuration, Configurations, Settings
from planner.domain.framework import Framework
from planner.domain.layers.record import Layer
from planner.domain.network import Network
from planner.domain.request import Problem, Scenario
from planner.errors import CoverageError, ParameterError
from planner.sources.overheads import EXPONENTS
from planner.sources.sources import Sources, check_precision, why_not_precision
from planner.steps.predict import Evaluator
from planner.workload.program import gradient_slots

Make = Callable[..., Problem]


def kernel(kind: str, direction: str = "", precision: str = "any", rate: float = 1.0) -> Entry:
    term, name = ("flop.rate", "flop") if kind in ("gemm", "convolution") else ("work.linear", "work")
    coefficients = {name: rate} if name == "flop" else {"calls": 0.0, name: rate}
    return Entry("kernels", kind, direction, precision, "", term, {}, coefficients)


def of(*entries: Entry, name: str = "own", **keys: Any) -> Calibration:
    return Calibration(name, "toy", entries, **keys)


def test_the_closest_entry_serves(make_problem: Make) -> None:
    candidates = [
        kernel("pointwise"), kernel("pointwise", "forward"), kernel("pointwise", "", "fp32"),
        kernel("activation"), kernel("activation", "forward"), kernel("activation", "", "fp32"),
        kernel("activation", "forward", "fp32"),
    ]  # fmt: skip
    expected = [
        ("activation", "forward", "fp32"), ("activation", "", "fp32"), ("activation", "forward", "any"),
        ("activation", "", "any"), ("pointwise", "", "fp32"), ("pointwise", "forward", "any"), ("pointwise", "", "any"),
    ]  # fmt: skip
    for wanted in expected:
        found = Sources(make_problem(calibrations=(of(*candidates),))).kernel("activation", "forward", "fp32")
        assert found.entry.key[1:4] == wanted
        candidates = [entry for entry in candidates if entry.key[1:4] != wanted]


def test_the_first_calibration_that_has_one_serves(make_problem: Make) -> None:
    first, second = of(kernel("pointwise"), name="first"), of(kernel("activation"), kernel("gemm"), name="second")
    sources = Sources(make_problem(calibrations=(first, second)))
    assert sources.kernel("activation", "forward", "fp32").calibration == "first"
    assert sources.kernel("gemm", "forward", "fp32").calibration == "second"


def test_products_are_not_pointwise(make_problem: Make) -> None:
    sources = Sources(make_problem(calibrations=(of(kernel("pointwise")),), explicit_calibration=True))
    assert sources.find_kernel("gemm", "forward", "fp32") is None


def test_calibrations_of_another_device_do_not_serve(make_problem: Make) -> None:
    other = replace(of(kernel("gemm")), accelerator="another")
    assert (
        Sources(make_problem(calibrations=(other,), explicit_calibration=True)).find_kernel("gemm", "", "fp32") is None
    )


def test_specifications_serve_only_where_no_calibration_is_named(make_problem: Make) -> None:
    specified = Sources(make_problem(calibrations=())).kernel("gemm", "forward", "fp16")
    assert (specified.origin, specified.calibration) == ("specified", "")
    remedy = r"`planner calibrate --samples DIR`, or, to use specifications, leave out --only-calibration$"
    with pytest.raises(
        CoverageError, match="kernel gemm forward in fp16 must be .* --device cuda`, or fit .*" + remedy
    ):
        Sources(make_problem(calibrations=(), explicit_calibration=True)).kernel("gemm", "forward", "fp16")


BYTES = ("bias", "activation", "gelu", "max_pool", "batch_norm", "layer_norm", "lrn", "softmax", "update", "im2col")


@pytest.mark.parametrize("kind", BYTES)
def test_beside_a_named_calibration_kernels_of_bytes_alone_are_specified(make_problem: Make, kind: str) -> None:
    named = Sources(make_problem(calibrations=(of(kernel("gemm")),), explicit_calibration=True))
    assert named.kernel("gemm", "forward", "fp32").calibration == "own"
    found = named.kernel(kind, "forward", "fp32")
    assert (found.origin, found.calibration) == ("specified", "")
    assert not named.is_calibrated(kind, "forward", "fp32")
    assert named.find_kernel(kind, "forward", "bf16") is None  # which the device does not have
    assert all(named.find_kernel(other, "forward", "fp32") is None for other in ("convolution", "attention"))
    both = Sources(make_problem(calibrations=(of(kernel("gemm"), kernel(kind)),), explicit_calibration=True))
    assert both.is_calibrated(kind, "forward", "fp32")


def test_a_network_without_convolutions_needs_none(make_problem: Make, network: Network) -> None:
    layers = (Layer("flat", "flatten", ("input",)), Layer("fc", "linear", ("flat",), {"features": 9}))
    products = (of(kernel("gemm", rate=1e-12)),)
    plain = make_problem(network=Network("plain", (3, 4, 4), layers), calibrations=products, explicit_calibration=True)
    assert why_not_precision(Sources(plain), "fp32") is None
    (found,) = Evaluator(plain).describe(Configurations.of([Configuration(1, 1, 4)]))
    assert next(term.origin for term in found.terms if term.name == "forward") == "measured+specified+assumed"
    (word,) = [one.message for one in found.warnings if (one.code, one.subject) == ("specified", "toy")]
    assert word.startswith("Times of bias, update kernels come from the peak rates of toy")
    assert "kernel convolution forward" in str(why_not_precision(Sources(replace(plain, network=network)), "fp32"))


def test_remedies_are_commands_that_work(make_problem: Make, accelerator: Accelerator, cluster: Cluster) -> None:
    """A CPU and a GPU are measured, or measurements fitted; what has no specification is not said to have one."""
    cpu = replace(cluster, node=replace(cluster.node, accelerator=replace(accelerator, kind="cpu")))
    sources = Sources(make_problem(cluster=cpu, calibrations=(), explicit_calibration=True))
    with pytest.raises(CoverageError, match="with `planner calibrate --device cpu --network NAME`, or, to use"):
        sources.kernel("gemm", "forward", "fp32")
    local = Sources(make_problem(cluster=replace(cpu, name="local"), calibrations=(), explicit_calibration=True))
    with pytest.raises(CoverageError, match=r"to use specifications, leave out --only-calibration$"):
        local.kernel("gemm", "forward", "fp32")
    for precision in ("int8", "bf16"):
        with pytest.raises(CoverageError, match=r"`planner calibrate --samples DIR`$"):
            Sources(make_problem(calibrations=())).kernel("gemm", "forward", precision)


def test_a_reconstruction_serves_its_own_cluster_alone(make_problem: Make, cluster: Cluster) -> None:
    kernels = (kernel("convolution"), kernel("gemm"), kernel("pointwise"))
    made = of(*kernels, name="made", origin="reconstructed", cluster=cluster.name)
    elsewhere = replace(cluster, name="elsewhere")
    assert Sources(make_problem(calibrations=(made,))).kernel("gemm", "forward", "fp32").calibration == "made"
    there = Sources(make_problem(calibrations=(made,), cluster=elsewhere))
    assert there.kernel("gemm", "forward", "fp32").origin == "specified"
    named = Sources(make_problem(calibrations=(made,), cluster=elsewhere, explicit_calibration=True))
    with pytest.raises(CoverageError, match="got none without it and made, which was reconstructed for toys alone;"):
        named.kernel("gemm", "forward", "fp32")
    measured = replace(made, origin="measured")
    assert Sources(make_problem(calibrations=(measured,), cluster=elsewhere)).kernel("gemm", "", "fp32").calibration


def test_a_users_own_k80_cluster_is_not_served_by_the_reconstruction() -> None:
    kfc = find_cluster("tsubame-kfc")
    own = replace(kfc, name="own")
    for where, origin in ((kfc, "reconstructed"), (own, "specified")):
        sources = Sources(Problem(find_network("sprint-15"), None, where, calibrations_for(where)))
        assert sources.kernel("convolution", "forward", "fp32").origin == origin
        assert (sources.overheads("fp32", "sync").matched == "generic") == (where is kfc)


def test_an_absent_precision_is_refused_even_with_entries_for_it(make_problem: Make) -> None:
    everything = of(kernel("pointwise"), kernel("gemm"), kernel("convolution"))
    with pytest.raises(CoverageError, match="toy does not have bf16"):
        check_precision(Sources(make_problem(calibrations=(everything,))), "bf16")


@pytest.mark.parametrize(
    ("kinds", "lowering"),
    [
        (("convolution", "gemm", "im2col"), "direct"),
        (("gemm", "im2col"), "im2col"),
        (("gemm",), "direct"),
        ((), "direct"),
    ],
)
def test_lowering_follows_the_entries(make_problem: Make, kinds: tuple[str, ...], lowering: str) -> None:
    calibrations = (of(*(kernel(kind) for kind in kinds)),)
    assert Sources(make_problem(calibrations=calibrations)).convolution_lowering("fp32") == lowering


@pytest.mark.parametrize(
    ("framework", "kinds", "matched"),
    [
        ("torch@2", ("generic", "torch", "torch@2"), "exact"),
        ("torch@2", ("generic", "torch"), "framework"),
        ("torch@2", ("generic", "torch@1", "torch"), "framework"),
        ("torch", ("generic", "torch@1"), "framework"),
        ("torch@2", ("generic", "torch@1"), "framework"),
        ("torch@2", ("generic", "torchy@2"), "generic"),
        ("torch@2", ("generic",), "generic"),
        ("torch@2", (), "assumed"),
    ],
)
def test_overheads_are_looked_up_from_exact_to_assumed(
    make_problem: Make, framework: str, kinds: tuple[str, ...], matched: str
) -> None:
    entries = (Entry("overheads", kind, "", "", "", "overheads", {}, {"kernel_scale": 2.0}) for kind in kinds)
    problem = make_problem(calibrations=(of(*entries),), settings=Settings(framework=Framework.labelled(framework)))
    found = Sources(problem).overheads("fp32", "sync")
    assert found.matched == matched
    assert (found.source.entry.kind == "torch") == ("torch" in kinds and matched == "framework")
    if matched == "assumed":
        assert (found.kernel_scale, found.host_s_per_call, found.exponent) == (1.0, 1e-5, EXPONENTS["exponent"])
        assert found.source.origin == "assumed"


def test_cluster_terms_come_from_calibrations_of_that_cluster(make_problem: Make, cluster: Cluster) -> None:
    load = Entry("storage", "load", "", "", "", "storage.samples", {}, {"calls": 0.0, "samples": 1e-3})
    elsewhere, here = of(load, cluster="elsewhere"), of(load, cluster=cluster.name, name="here")
    assert Sources(make_problem(calibrations=(elsewhere,))).cluster_entry("storage", "load") is None
    found = Sources(make_problem(calibrations=(elsewhere, here))).storage
    assert found is not None
    assert found.calibration == "here"
    local = replace(cluster, name="local")
    own = of(load, node=cluster.node)
    assert Sources(make_problem(calibrations=(own,), cluster=local)).cluster_entry("storage", "load") is not None


def test_host_collectives_serve_update_threads_only(make_problem: Make, cluster: Cluster) -> None:
    values = {"log2_ranks": 0.0, "byte_log2_ranks": 1e-9}
    entry = Entry("collectives", "all_reduce", "", "", "host", "collective.logarithmic", {}, values)
    sources = Sources(make_problem(calibrations=(of(entry, cluster=cluster.name),)))
    assert sources.host_all_reduce.entry.library == "host"
    assert sources.device_all_reduce.origin == "specified"


def test_a_library_of_devices_does_not_serve_update_threads(make_problem: Make, cluster: Cluster) -> None:
    values = dict.fromkeys(("messages_inside", "bytes_inside", "messages_between", "bytes_between"), 1e-9)
    settings = {"algorithms": "double_binary_tree"}
    entry = Entry("collectives", "all_reduce", "", "", "nccl", "collective.alpha_beta", settings, values)
    problem = make_problem(calibrations=(of(entry, cluster=cluster.name),))
    sources = Sources(problem)
    assert sources.device_all_reduce.calibration == "own"
    assert (sources.host_all_reduce.origin, sources.host_all_reduce.calibration) == ("specified", "")
    found = Evaluator(problem).describe(Configurations.of([Configuration(4, 2, 1, mode="async")]))[0]
    assert any("between hosts: one rank a node" in warning.message for warning in found.warnings)
    assert cluster.inter_node is not None
    parameters = int(gradient_slots(problem.network).elements.sum())
    rabenseifner = 4 * cluster.inter_node.latency_s + 1.5 * 4 * parameters / cluster.inter_node.bytes_per_s
    assert next(t.seconds for t in found.terms if t.name == "all_reduce") == pytest.approx(rabenseifner)


@pytest.mark.parametrize(
    ("missing", "input_", "mode"),
    [
        ("storage", "storage", "sync"),
        ("host", "storage", "sync"),
        ("host", "synthetic", "async"),
        ("intra_node", "synthetic", "sync"),
        ("inter_node", "synthetic", "sync"),
        ("inter_node", "synthetic", "async"),
    ],
)
def test_what_is_not_described_is_refused_by_name(
    make_problem: Make, cluster: Cluster, missing: str, input_: str, mode: str
) -> None:
    absent: dict[str, Any] = {missing: None}
    problem = make_problem(cluster=replace(cluster, **absent), settings=Settings(input=input_))
    with pytest.raises(CoverageError, match=missing):
        Evaluator(problem).evaluate(Configurations.of([Configuration(2, 4, 1, mode=mode)]))


def test_host_terms_are_not_assumed_beside_a_named_calibration(make_problem: Make, cluster: Cluster) -> None:
    with pytest.raises(CoverageError, match=r"host term sum_gradient .*; leave out --only-calibration to use"):
        Sources(make_problem(explicit_calibration=True)).host("sum_gradient")
    local = make_problem(cluster=replace(cluster, name="local"), explicit_calibration=True)
    with pytest.raises(CoverageError, match=r"--only-calibration, name a --cluster with \[links\.host\], to use"):
        Sources(local).host("sum_gradient")


@pytest.mark.parametrize(("optimizer", "moved"), [("sgd", 12), ("sgd-momentum", 20), ("adam", 28)])
def test_the_host_updates_weights_with_the_optimizer(make_problem: Make, optimizer: str, moved: int) -> None:
    problem = make_problem(settings=Settings(optimizer=optimizer))
    found = Evaluator(problem).describe(Configurations.of([Configuration(1, 1, 1, mode="async")]))[0]
    parameters = int(gradient_slots(problem.network).elements.sum())
    seconds = next(term.seconds for term in found.terms if term.name == "update_weights")
    assert seconds == pytest.approx(parameters * moved / 1e10)


def test_asynchronous_plans_need_an_optimizer(make_problem: Make) -> None:
    sources = Sources(make_problem(settings=Settings(optimizer="none")))
    assert "optimizer must be one that updates the weights" in sources.why_not_mode("async")
    assert sources.why_not_mode("sync") == ""


def test_a_latency_without_a_measured_one_to_scale_is_refused(make_problem: Make, cluster: Cluster) -> None:
    """A measured entry scales with new over old latency; a specified one takes the new latency as it is."""
    assert cluster.inter_node is not None
    instant = replace(cluster, inter_node=replace(cluster.inter_node, latency_s=0.0))
    names = ("messages_inside", "bytes_inside", "messages_between", "bytes_between")
    entry = Entry("collectives", "all_reduce", "", "", "nccl", "collective.alpha_beta", {"algorithms": "ring"},
                  dict.fromkeys(names, 1e-9))  # fmt: skip
    measured = of(entry, cluster=cluster.name)
    slower = Scenario("x", {}, {("inter_node", "latency_s"): 1e-3})
    with pytest.raises(
        ParameterError, match=r"latency of links\.inter_node of cluster toys must be above 0 .*, got 0;"
    ):
        _ = Sources(make_problem(cluster=instant, calibrations=(measured,), scenario=slower)).device_all_reduce
    faster = Scenario("x", {}, {("inter_node", "bytes_per_s"): 1e12})
    kept = Sources(make_problem(cluster=instant, calibrations=(measured,), scenario=faster)).device_all_reduce
    assert kept.entry.coefficients["messages_between"] == 1e-9
    specified = Sources(make_problem(cluster=instant, calibrations=(), scenario=slower)).device_all_reduce
    assert specified.entry.coefficients["messages_between"] == 1e-3


def test_a_scenario_cannot_replace_a_link_that_is_not_there(make_problem: Make, cluster: Cluster) -> None:
    scenario = Scenario("x", {}, {("host", "bytes_per_s"): 1e9})
    with pytest.raises(CoverageError, match=r"links\.host"):
        _ = Sources(make_problem(cluster=replace(cluster, host=None), scenario=scenario)).cluster


def test_biases_of_linear_layers_alone_may_be_part_of_other_calls(make_problem: Make) -> None:
    """What a kind of theirs does not say, that of all biases does, or of all kernels of bytes."""
    layers = (
        Layer("conv", "convolution", ("input",), {"channels": 2, "kernel": 1}),
        Layer("flat", "flatten", ("conv",)),
        Layer("fc", "linear", ("flat",), {"features": 9}),
    )
    network = Network("biases", (3, 4, 4), layers)

    def forward_s(*entries: Entry) -> float:
        free = (kernel("gemm", rate=0.0), kernel("convolution", rate=0.0), kernel("update", rate=0.0))
        problem = make_problem(network=network, calibrations=(of(*free, *entries),), explicit_calibration=True)
        settings = replace(problem.settings, input="synthetic")
        (found,) = Evaluator(replace(problem, settings=settings)).describe(Configurations.of([Configuration(1, 1, 1)]))
        return next(term.seconds for term in found.terms if term.name == "forward")

    nothing = forward_s(kernel("pointwise", rate=0.0))
    of_linear, of_convolution = 9, 32
    contained = kernel("linear_bias", rate=0.0)
    for priced in ("pointwise", "bias"):
        all_s = forward_s(kernel(priced, rate=1.0)) - nothing
        apart_s = forward_s(kernel(priced, rate=1.0), contained) - nothing
        assert apart_s / all_s == pytest.approx(of_convolution / (of_convolution + of_linear))
    assert forward_s(kernel("pointwise", rate=1.0), kernel("bias", rate=0.0)) == nothing
