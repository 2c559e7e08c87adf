"""What a prediction warns of, and what it does not."""

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from planner.domain.calibration import Calibration, Entry, by_precision
from planner.domain.cluster import Cluster
from planner.domain.configuration import Configuration, Configurations, Settings
from planner.domain.framework import Framework
from planner.domain.layers.record import INPUT, Layer
from planner.domain.network import Network
from planner.domain.provenance import NORMAL_90
from planner.domain.request import Dataset, Problem, Scenario
from planner.numbers import constant
from planner.steps.predict import Evaluator
from planner.steps.warnings import empty_updates

Make = Callable[..., Problem]
ALONE = Configurations.of([Configuration(1, 1, 4)])


def warned(problem: Problem, configurations: Configurations = ALONE) -> dict[str, str]:
    """Return the messages by code and subject."""
    found = Evaluator(problem).describe(configurations)[0].warnings
    assert all(w.message.endswith(".") and w.message.count("\n") == 0 for w in found)
    return {f"{w.code} {w.subject}": w.message for w in found}


def overheads(kind: str) -> Entry:
    return Entry("overheads", kind, "", "", "", "overheads", {}, {"kernel_scale": 1.0})


def test_a_measured_single_device_needs_only_say_that_overheads_are_generic(
    make_problem: Make, cluster: Cluster
) -> None:
    load = Entry("storage", "load", "", "", "", "storage.samples", {}, {"calls": 0.0, "samples": 1e-6})
    copy = Entry("host", "copy", "", "", "", "host.bytes", {}, {"calls": 0.0, "bytes": 1e-10})
    problem = make_problem()
    here = Calibration("here", "toy", (load, copy), cluster=cluster.name)
    complete = replace(problem, calibrations=(*problem.calibrations, here))
    assert list(warned(complete)) == ["framework_overheads_generic pytorch"]


def test_specified_kernels_and_links_are_said(make_problem: Make) -> None:
    found = warned(make_problem(calibrations=()), Configurations.of([Configuration(2, 4, 4)]))
    assert "convolution, gemm" in found["specified toy"]
    assert "all_reduce" in found["specified toys"]
    assert "all_reduce" not in warned(make_problem(calibrations=()))["specified toys"]


@pytest.mark.parametrize(
    ("kind", "framework", "code"),
    [
        ("generic", "torch", "framework_overheads_generic torch"),
        ("torch", "torch@2", "framework_overheads_other_version torch@2"),
        ("torch", "torch", None),
        ("torch@2.13.0", "torch", None),
        ("torch@2.13.0", "torch@2.12", "framework_overheads_other_version torch@2.12"),
        ("torch@2.13.0", "torch@2.13.0", None),
        ("torchy@1", "torch", "framework_overheads_assumed torch"),
        ("other", "torch", "framework_overheads_assumed torch"),
    ],
)
def test_overheads_say_how_they_were_found(
    make_problem: Make, calibration: Calibration, kind: str, framework: str, code: str | None
) -> None:
    kernels = tuple(entry for entry in calibration.entries if entry.scope == "kernels")
    own = replace(calibration, entries=(*kernels, overheads(kind)))
    found = warned(make_problem(calibrations=(own,), settings=Settings(framework=Framework.labelled(framework))))
    assert [key for key in found if key.startswith("framework")] == ([] if code is None else [code])


@pytest.mark.parametrize(("mode", "said"), [("", False), ("sync", False), ("async", True)])
def test_overheads_of_the_other_mode_are_said(
    make_problem: Make, calibration: Calibration, mode: str, *, said: bool
) -> None:
    kernels = tuple(entry for entry in calibration.entries if entry.scope == "kernels")
    own = replace(calibration, entries=(*kernels, replace(overheads("torch"), mode=mode)))
    found = warned(make_problem(calibrations=(own,), settings=Settings(framework=Framework("torch"))))
    assert ("overheads_of_other_mode torch" in found) == said


def test_a_reconstruction_and_a_calibrations_own_warnings_are_passed_on(
    make_problem: Make, calibration: Calibration
) -> None:
    marked = replace(calibration, origin="reconstructed", cluster="toys", warnings=("One thread only.",))
    found = warned(make_problem(calibrations=(marked,)))
    assert "in-sample" in found["reconstructed toy-kernels"]
    assert found["calibration toy-kernels"] == "One thread only."
    unused = replace(marked, name="unused", accelerator="another")
    assert "reconstructed unused" not in warned(make_problem(calibrations=(calibration, unused)))


@pytest.mark.parametrize(
    ("sentence", "precision", "is_said"),
    [
        ("FP16 training is too fast.", "fp32", False),
        ("FP16 training is too fast.", "fp16", True),
        ("Half of FP16 rows are missing.", "fp32", True),
    ],
)
def test_a_warning_about_a_precision_is_said_of_predictions_in_it(
    make_problem: Make, calibration: Calibration, cluster: Cluster, sentence: str, precision: str, *, is_said: bool
) -> None:
    rates, accelerator = {"fp32": 1e12, "fp16": 2e12}, cluster.node.accelerator
    able = replace(cluster, node=replace(cluster.node, accelerator=replace(accelerator, peak_flop_per_s=rates)))
    halves = (replace(one, precision="fp16") for one in calibration.entries if one.kind in ("gemm", "convolution"))
    general, narrow = by_precision([sentence])
    both = replace(calibration, entries=(*calibration.entries, *halves), warnings=general, precision_warnings=narrow)
    asked = Configurations.of([Configuration(1, 1, 4, precision=precision)])
    found = warned(make_problem(cluster=able, calibrations=(both,)), asked)
    assert ("calibration toy-kernels" in found) == is_said


def test_what_is_wrong_with_input_is_said_where_input_is_priced(make_problem: Make, calibration: Calibration) -> None:
    doubtful = replace(calibration, input_warnings=("Decoding was not measured.",))
    read = make_problem(calibrations=(doubtful,))
    assert warned(read)["calibration toy-kernels"] == "Decoding was not measured."
    assert "calibration toy-kernels" not in warned(replace(read, settings=Settings(input="synthetic")))


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"cuda": "12", "threads": "1"}, "cuda '11' against '12'."),
        ({"cuda": "11", "load_average": "9"}, None),
        ({"cuda": "11", "driver": "535"}, None),
        ({"driver": "535"}, "2 calibrations, which describe their conditions in different terms"),
        ({"load_average": "9"}, None),
        ({}, None),
    ],
)
def test_kernels_of_unlike_circumstances_in_one_step_are_said(
    make_problem: Make, calibration: Calibration, environment: Mapping[str, str], words: str | None
) -> None:
    known = {"cuda": "11", "load_average": "1"}
    products = tuple(entry for entry in calibration.entries if entry.kind == "gemm")
    rest = tuple(entry for entry in calibration.entries if entry.kind != "gemm")
    first = replace(calibration, entries=products, environment=known)
    other = replace(calibration, name="other", entries=rest, environment=environment)
    found = warned(make_problem(calibrations=(first, other)))
    assert (words or "") in found.get("mixed_circumstances toy-kernels, other", "")
    assert ("mixed_circumstances toy-kernels, other" in found) == bool(words)
    unused = replace(other, entries=products)  # the first has them all
    complete = replace(calibration, environment=known)
    assert "mixed_circumstances" not in " ".join(warned(make_problem(calibrations=(complete, unused))))


def test_assumed_terms_are_named(make_problem: Make, cluster: Cluster) -> None:
    load = Entry(
        "storage", "load", "", "", "", "storage.samples", {}, {"calls": 0.0, "samples": 1e-3}, origin="assumed"
    )
    problem = make_problem()
    guessed = Calibration("guessed", "toy", (load,), cluster=cluster.name)
    assert "assumed load" in warned(replace(problem, calibrations=(*problem.calibrations, guessed)))


@pytest.mark.parametrize(("optimizer", "differs"), [("sgd-momentum", False), ("nesterov", False), ("adam", True)])
def test_a_calibrated_weight_update_says_whose_it_is(
    make_problem: Make, cluster: Cluster, optimizer: str, *, differs: bool
) -> None:
    entry = Entry("host", "update_weights", "", "", "", "host.parameters", {}, {"calls": 0.0, "parameters": 1e-9})
    problem = make_problem(settings=Settings(optimizer=optimizer))
    timed = replace(
        problem, calibrations=(*problem.calibrations, Calibration("timed", "toy", (entry,), cluster=cluster.name))
    )
    plan = Configurations.of([Configuration(1, 1, 4, mode="async")])
    assert (f"optimizer_differs {optimizer}" in warned(timed, plan)) == differs
    assert f"optimizer_differs {optimizer}" not in warned(timed)  # synchronous: the device updates
    assert f"optimizer_differs {optimizer}" not in warned(problem, plan)  # specified: the bytes are right


def test_empty_updates_are_said_with_the_mini_batch_of_the_others(make_problem: Make) -> None:
    """One GPU, so an update is empty with probability 1 - q: those that are not hold the sub-batch."""
    plan = Configurations.of([Configuration(1, 1, 64, mode="async"), Configuration(1, 4, 1, mode="async")])
    slow = make_problem(scenario=Scenario("", {"update_weights": 1e-3, "sum_gradient": 1e-3}))
    found = Evaluator(slow).describe(plan)
    q = found[0].update_s.value / found[0].iteration_s.value if found[0].update_s else 0.0
    assert 0 < q < 0.99
    message = next(w.message for w in found[0].warnings if w.code == "empty_updates")
    assert message.startswith(f"{100 * (1 - q):.2g}% of the updates have no gradient")
    assert "mean mini-batch of the others is 64 samples" in message
    often = make_problem(scenario=Scenario("", {"update_weights": 1e3}))
    assert all(w.code != "empty_updates" for w in Evaluator(often).describe(plan)[1].warnings)


def test_a_window_that_updates_hardly_ever_hit_is_said(make_problem: Make) -> None:
    """One GPU deposits 64 samples or nothing: a window round the mean alone holds no update at all."""
    plan = Configurations.of([Configuration(1, 1, 64, mode="async")])
    slow = Evaluator(make_problem(scenario=Scenario("", {"update_weights": 20.0, "sum_gradient": 1e-3})))
    mean = slow.describe(plan)[0].mini_batch.mean
    assert 2 < mean < 62
    for window, is_said in (((mean - 1, mean + 1), True), ((mean - 1, 64), False), ((mean + 1, mean + 2), False)):
        (found,) = slow.describe(plan, window={"async": window}.__getitem__)
        messages = [w.message for w in found.warnings if w.code == "window_missed"]
        assert len(messages) == is_said
        assert all("but only 0% of the updates do" in message for message in messages)
    assert all(w.code != "window_missed" for w in slow.describe(plan)[0].warnings)


def test_decoding_is_missed_where_loading_is_bytes_over_a_bandwidth(make_problem: Make, cluster: Cluster) -> None:
    assert "decode_not_modelled load_input" in warned(make_problem())
    assert "decode_not_modelled load_input" not in warned(make_problem(settings=Settings(input="synthetic")))
    assert "decode_not_modelled load_input" not in warned(make_problem(dataset=None))  # nothing is loaded then
    load = Entry("storage", "load", "", "", "", "storage.samples", {}, {"calls": 0.0, "samples": 1e-6})
    problem = make_problem()
    here = Calibration("here", "toy", (load,), cluster=cluster.name)
    assert "decode_not_modelled load_input" not in warned(replace(problem, calibrations=(*problem.calibrations, here)))


@pytest.mark.parametrize(
    ("sure", "code"), [(0.91, None), (0.89, "memory_tight"), (0.51, "memory_tight"), (0.49, "out_of_memory")]
)
def test_memory_is_tight_where_it_may_well_not_suffice(
    make_problem: Make, cluster: Cluster, sure: float, code: str | None
) -> None:
    needed = Evaluator(make_problem()).evaluate(ALONE).memory_bytes[0]
    reach = statistics.NormalDist(0, constant("memory.half_width") / NORMAL_90).inv_cdf(sure)
    device = replace(cluster.node.accelerator, memory_bytes=needed * math.exp(reach))
    found = warned(make_problem(cluster=replace(cluster, node=replace(cluster.node, accelerator=device))))
    codes = {f"{name} toy" for name in ("memory_tight", "out_of_memory")}
    assert codes & set(found) == ({f"{code} toy"} if code else set())


@pytest.mark.parametrize(("samples", "is_said"), [(127, True), (128, False)])
def test_a_mini_batch_larger_than_the_data_set_is_said(make_problem: Make, samples: int, *, is_said: bool) -> None:
    plan = Configurations.of([Configuration(2, 4, 8, 2)])
    found = warned(make_problem(dataset=Dataset("few", samples, 1e4)), plan)
    assert ("mini_batch_above_dataset mini_batch" in found) == is_said


@pytest.mark.parametrize(("calls", "host_s", "is_said"), [(0.0, 0.0, True), (1e-6, 0.0, False), (0.0, 1e-6, False)])
def test_a_calibration_without_time_per_call_says_that_sub_batches_can_tie(
    make_problem: Make, calibration: Calibration, calls: float, host_s: float, *, is_said: bool
) -> None:
    """And they do: twice the sub-batch computes for twice as long, exactly then."""
    *kernels, pointwise, host = calibration.entries
    entries = (
        *kernels,
        replace(pointwise, coefficients={"calls": calls, "bytes": 1e-11}),
        replace(host, coefficients=dict(host.coefficients) | {"host_s_per_call": host_s}),
    )
    problem = make_problem(calibrations=(replace(calibration, entries=entries),))
    assert ("no_time_per_call toy-kernels" in warned(problem)) == is_said
    plans = Configurations.of([Configuration(1, 1, n) for n in (4, 8)])
    small, large = (
        sum(t.seconds for t in one.terms if t.name in ("forward", "backward"))
        for one in Evaluator(problem).describe(plans)
    )
    assert (large == pytest.approx(2 * small, rel=1e-12)) == is_said


@pytest.mark.parametrize(("share", "is_said"), [(0.0, False), (0.01, False), (0.011, True), (0.9, True)])
def test_a_hundredth_of_empty_updates_is_not_worth_a_word(share: float, *, is_said: bool) -> None:
    found = empty_updates(share, 50.0)
    assert bool(found) == is_said
    if is_said:
        assert f"{50 / (1 - share):.4g} samples" in found[0].message


@pytest.mark.parametrize(
    ("heads", "head_size", "said"),
    [(2, 4, False), (3, 2, True), (3, 3, False), (5, 1, True), (5, 2, False), (8, 1, False)],
)
def test_heads_whose_size_is_rounded_down_are_said(
    make_problem: Make, heads: int, head_size: int, *, said: bool
) -> None:
    layers = (
        Layer("tokens", "embedding", (INPUT,), {"vocabulary": 9, "features": 8}),
        Layer("qkv", "linear", ("tokens",), {"features": 3 * heads * head_size}),
        Layer("core", "attention", ("qkv",), {"heads": heads}),
        Layer("loss", "loss", ("core",)),
    )
    found = warned(make_problem(network=Network("small", (4,), layers), dataset=None))
    assert ("head_size_rounded small" in found) == said
    if said:
        assert f"each has {head_size}, rounded down, {heads * head_size} in total." in found["head_size_rounded small"]


def test_an_entry_that_is_passed_over_is_named_with_what_serves_instead(
    make_problem: Make, calibration: Calibration
) -> None:
    """Only where the network calls it, and in the precision that is asked for."""
    pointwise = next(entry for entry in calibration.entries if entry.kind == "pointwise")
    poor = replace(pointwise, kind="activation", direction="backward_data", held_out_error=15.72)
    of_none, halves = replace(poor, kind="concat"), replace(poor, direction="forward", precision="fp16")
    whole = replace(calibration, entries=(*calibration.entries, poor, of_none, halves))
    assert warned(make_problem(calibrations=(whole,)))["entry_not_used toy-kernels"] == (
        "Activation backward data of toy-kernels misses rows that were left out of its fit by 1,572% and is not used: "
        "pointwise of toy-kernels is used instead."
    )
    alone = replace(whole, entries=tuple(entry for entry in whole.entries if entry.kind != "pointwise"))
    found = warned(make_problem(calibrations=(alone,)))["entry_not_used toy-kernels"]
    assert found.endswith("and is not used: the data sheet is used instead.")
    good = replace(calibration, entries=(*calibration.entries, replace(poor, held_out_error=1.0)))
    assert "entry_not_used toy-kernels" not in warned(make_problem(calibrations=(good,)))
