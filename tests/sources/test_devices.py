"""Kernels of a device without measurements: which are taken over, from where, how sure they are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from planner import catalog
from planner.costs.specified import scaled_entry
from planner.costs.terms import evaluate
from planner.domain.calibration import (
    Calibration,
    Entry,
    OwnPoints,
    Transfers,
    TransferScore,
    relation,
    score_for,
    units_between,
)
from planner.domain.cluster import Accelerator, Cluster, Link, Node
from planner.domain.network import LOOKED_UP
from planner.domain.provenance import FIT, SCALED, ConformalScore
from planner.errors import ParameterError
from planner.sources.devices import (
    nearest_fits,
    on_other_device,
    same_die_fits,
    scaled_calibration,
    what_misses,
)
from planner.sources.source import source_of, unsure
from planner.steps.intervals import STANDARD_PER_MEAN_ERROR, Gradient

OLD = Accelerator("old", "gpu", 16e9, 1e12, {"fp32": 10e12, "fp16": 80e12}, 80, "", "Maker", "First", "A1")
TWIN = replace(OLD, name="twin", memory_bytes_per_s=0.8e12)
COUSIN = replace(OLD, name="cousin", chip="A2")
NEW = Accelerator("new", "gpu", 80e9, 2e12, {"fp32": 20e12}, 100, "", "Maker", "Second", "B1")


def score(near: str, kind: str, mean: float, precision: str = "fp32", units: str = "lanes") -> TransferScore:
    """Return a score of single shapes, and of half of it where they are added up."""
    return TransferScore(units, kind, precision, 2, 100, mean, mean, mean, near, mean / 2)


KNOWN = Transfers(
    (score("chip", "gemm", 0.1), score("vendor", "gemm", 0.4), score("vendor", "pointwise", 0.2, "any", "any")),
    20,
    (OwnPoints("lanes", "gemm", "fp32", 3, 0.4, 0.3, 0.15, 0.1),),
)


def kernel(kind: str, precision: str = "fp32", error: float | None = 0.05, direction: str = "", **keys: Any) -> Entry:
    name = "flop.rate" if kind in ("gemm", "convolution") else "traffic.bytes"
    coefficients = {"flop": 1e-13} if name == "flop.rate" else {"calls": 1e-6, "bytes": 1e-12}
    return Entry("kernels", kind, direction, precision, "", name, {}, coefficients, held_out_error=error, **keys)


def of(device: Accelerator, *entries: Entry, name: str = "", **keys: Any) -> Calibration:
    return Calibration(name or device.name, device.name, entries, **keys)


def cluster(device: Accelerator) -> Cluster:
    return Cluster("some", 4, Node(8, device), inter_node=Link("infiniband", 1e10, 1e-6), usd_per_gpu_hour=2.0)


def test_relations_go_from_the_chip_outward() -> None:
    assert [relation(OLD, other) for other in (TWIN, COUSIN, NEW)] == ["chip", "architecture", "vendor"]
    assert relation(OLD, replace(TWIN, vendor="Another")) == "other"
    # What is not known is not in common, not even with itself.
    bare = Accelerator("bare", "gpu", 1e9, 1e9, {"fp32": 1e9})
    assert relation(bare, replace(bare, name="other")) == "other"


def test_what_was_not_scored_is_taken_for_as_bad_as_what_comes_close() -> None:
    def mean(near: str, kind: str, precision: str, units: str = "lanes") -> float | None:
        found = score_for(KNOWN.scores, near, units, kind, precision)
        return None if found is None else found.mean

    assert mean("chip", "gemm", "fp32") == 0.1
    assert mean("chip", "gemm", "fp16") == 0.1
    # No score of the architecture: products of GPUs less near; and another kind of bytes.
    assert mean("architecture", "gemm", "fp32") == 0.4
    assert mean("chip", "softmax", "any", "any") == 0.2
    assert mean("other", "convolution", "fp32") == 0.4
    assert score_for((), "chip", "lanes", "gemm", "fp32") is None


def test_units_are_looked_up_before_all_else() -> None:
    scores = (
        score("chip", "gemm", 0.1),
        score("vendor", "gemm", 0.4),
        score("vendor", "gemm", 0.15, "fp16", "matrix"),
        score("vendor", "gemm", 0.5, "fp16", "mixed, to matrix"),
        score("vendor", "convolution", 0.3, "fp16", "matrix"),
        score("vendor", "convolution", 0.9, "fp16", "mixed, to matrix"),
        score("chip", "convolution", 0.2),
    )

    def mean(near: str, units: str, kind: str, precision: str = "fp16") -> float:
        found = score_for(scores, near, units, kind, precision)
        assert found is not None
        return found.mean

    assert [mean("vendor", units, "gemm") for units in ("matrix", "mixed, to matrix", "lanes")] == [0.15, 0.5, 0.4]
    # Another precision of the same units, a relation less near with them; then other units, then another kind.
    assert mean("vendor", "matrix", "gemm", "bf16") == 0.15
    assert mean("chip", "matrix", "convolution") == 0.3
    assert mean("vendor", "mixed, to lanes", "gemm") == 0.5
    assert mean("chip", "mixed, to lanes", "convolution") == 0.2
    assert mean("chip", "matrix", "attention") == 0.15  # that of products
    assert mean("chip", "matrix", "update") == 0.9
    with pytest.raises(ParameterError):
        score("vendor", "gemm", 0.1, units="both")


def test_units_of_a_pair_are_those_of_the_kind_and_of_the_side_that_is_predicted() -> None:
    lanes = replace(NEW, peak_flop_per_s={"fp32": 20e12, "fp16": 40e12})
    assert [units_between(OLD, other, "gemm", "fp16") for other in (TWIN, lanes)] == ["matrix", "mixed, to lanes"]
    assert units_between(lanes, OLD, "convolution", "fp16") == "mixed, to matrix"
    assert units_between(OLD, lanes, "gemm", "fp32") == "lanes"
    assert {units_between(OLD, lanes, kind, "fp16") for kind in ("pointwise", "softmax")} == {"any"}


@pytest.mark.parametrize(("mean", "bias", "single", "sums"), [(0.4, 0.2, 0.4, 0.2), (0.4, 0.02, 0.4, 0.05)])
def test_sums_miss_by_what_devices_are_missed_by_or_the_fit_itself(
    mean: float, bias: float, single: float, sums: float
) -> None:
    known = Transfers((replace(score("vendor", "gemm", mean), bias=bias),))
    (found,) = scaled_calibration(of(OLD, kernel("gemm")), OLD, NEW, known).entries
    assert (found.miss, found.miss_of_sums) == (single, sums)
    gradient, work = Gradient(), {"m": 8.0, "n": 8.0, "k": 8.0, "batch": 1.0}
    gradient.add(found, work, 1.0)
    spread, seconds = gradient.spread(), float(evaluate(found, work))
    assert spread is not None
    assert spread.variance_s2 == pytest.approx((STANDARD_PER_MEAN_ERROR * sums * seconds) ** 2)
    assert gradient.variance_of_parts() == pytest.approx((STANDARD_PER_MEAN_ERROR * single * seconds) ** 2)
    # What is made of it in turn is not known to be surer as a sum.
    assert unsure(found, 0.3, "precision").miss_of_sums == single


def test_a_scaled_entry_is_as_unsure_as_transfers_were() -> None:
    entries = (kernel("gemm"), kernel("gemm", "fp16"), kernel("pointwise", "any", 0.3))
    found = scaled_calibration(of(OLD, *entries), OLD, NEW, KNOWN)
    # No fp16 on the new device. A fit that is worse than transfers keeps its own error.
    assert [(e.kind, e.precision, e.held_out_error) for e in found.entries] == [
        ("gemm", "fp32", 0.4), ("pointwise", "any", 0.3),
    ]  # fmt: skip
    assert found.entries[0].coefficients == scaled_entry(kernel("gemm"), OLD, NEW).coefficients == {"flop": 0.5e-13}
    assert (found.accelerator, found.name) == ("new", "scaled from old")
    assert scaled_calibration(of(OLD, kernel("gemm"), name="mine"), OLD, NEW, KNOWN).name == "mine scaled from old"
    here = source_of(kernel("gemm"), of(OLD, kernel("gemm"), seen=("vgg16",))).provenance
    assert (here.kind, here.name, here.calibration, here.device) == (FIT, "old", "old", "")
    there = scaled_calibration(of(OLD, kernel("gemm"), name="mine", seen=("vgg16",)), OLD, NEW, KNOWN)
    made = source_of(there.entries[0], there).provenance
    assert (made.kind, made.name, made.calibration, made.device) == (SCALED, "mine scaled from old", "mine", "old")
    assert made.seen == here.seen == {"vgg16"}


def test_a_device_of_lanes_takes_tiles_of_matrix_units_from_fp32() -> None:
    lanes = replace(NEW, peak_flop_per_s={"fp32": 20e12, "fp16": 40e12})
    tiled = replace(kernel("convolution", "fp16"), term="convolution.channels", coefficients={"channel_flop": 1e-14})
    found = scaled_calibration(of(OLD, tiled, kernel("convolution")), OLD, lanes, KNOWN)
    assert [(e.precision, e.term, dict(e.coefficients)) for e in found.entries] == [
        (precision, "flop.rate", {"flop": 0.5e-13}) for precision in ("fp16", "fp32")
    ]


def test_the_answer_says_what_a_few_own_points_would_change() -> None:
    found = scaled_calibration(of(OLD, kernel("gemm"), warnings=("As before.",)), OLD, NEW, KNOWN)
    said, *others = found.warnings
    assert others == ["As before."]
    assert "scaled from old to new" in said
    assert "gemm fp32: single shapes by 40% (15% from 20 of its own alone: better), a network's sum by 20%." in said
    assert "`planner calibrate --device cuda` times those of new itself" in said


@pytest.mark.parametrize("own", [0.398, 0.45])
def test_own_points_that_miss_as_much_as_the_transfer_are_called_no_better(own: float) -> None:
    known = replace(KNOWN, own_points=(replace(KNOWN.own_points[0], own=own),))
    said = scaled_calibration(of(OLD, kernel("gemm")), OLD, NEW, known).warnings[0]
    assert f"single shapes by 40% ({own:.0%} from 20 of its own alone: no better)" in said
    assert "more than any transfer" not in said


def test_only_what_was_measured_is_taken_over() -> None:
    held = {"one_node_measured": ConformalScore(0.2, 0.9, 9, 90)}
    overheads = Entry("overheads", "pytorch", "", "", "", "overheads", {}, {"kernel_scale": 1.0})
    entries = (kernel("gemm", origin="reconstructed"), kernel("convolution"), overheads)
    found = scaled_calibration(of(OLD, *entries, conformal=held, cluster="some"), OLD, NEW, KNOWN)
    assert [entry.kind for entry in found.entries] == ["convolution"]
    assert (dict(found.conformal), found.cluster, found.node) == ({}, None, None)
    sheet = scaled_calibration(of(OLD, kernel("gemm", error=None, origin="specified")), OLD, NEW, KNOWN)
    assert sheet.entries[0].held_out_error is None


def test_what_misses_is_what_nothing_of_the_device_serves() -> None:
    forward = kernel("convolution", direction="forward")
    entries = (kernel("gemm"), forward, kernel("pointwise", "any"), kernel("gelu", "any"))
    missing = what_misses((of(OLD, *entries), of(NEW, kernel("gemm", "fp16"))), cluster(OLD))
    assert not missing("gemm", "", "fp32")
    assert not missing("gemm", "forward", "fp32")
    assert missing("gemm", "", "fp16")
    assert missing("convolution", "backward_data", "fp32")
    assert not missing("softmax", "forward", "any")  # pointwise serves it
    nothing = what_misses((of(OLD, kernel("activation", "any")),), cluster(OLD))
    assert not nothing("gelu", "forward", "any")  # an activation serves it
    assert nothing("pointwise", "", "any")
    made = of(OLD, kernel("gemm"), origin="reconstructed", cluster="another")
    assert what_misses((made,), cluster(OLD))("gemm", "", "fp32")
    assert not what_misses((replace(made, cluster="some"),), cluster(OLD))("gemm", "", "fp32")


def test_siblings_serve_what_is_missing_the_surest_first() -> None:
    poor = of(TWIN, kernel("gemm", error=0.3), kernel("convolution"), name="poor")
    good = of(TWIN, kernel("gemm", error=0.05), kernel("pointwise", "any"), name="good")
    own = of(OLD, kernel("pointwise", "any"))
    missing = what_misses((own,), cluster(OLD))
    found = same_die_fits(OLD, [(TWIN, poor), (TWIN, good)], KNOWN, missing)
    assert {one.name: [entry.kind for entry in one.entries] for one in found} == {
        "poor scaled from twin": ["convolution"], "good scaled from twin": ["gemm"],
    }  # fmt: skip
    everything = (own, of(OLD, kernel("gemm"), kernel("convolution")))
    assert same_die_fits(OLD, [(TWIN, poor), (TWIN, good)], KNOWN, what_misses(everything, cluster(OLD))) == ()


def test_fused_attention_goes_no_farther_than_the_chip() -> None:
    made = of(TWIN, kernel("attention"), kernel("gemm"))
    for device, kinds in ((OLD, ["attention", "gemm"]), (COUSIN, ["gemm"]), (NEW, ["gemm"])):
        assert [one.kind for one in scaled_calibration(made, TWIN, device, KNOWN).entries] == kinds
    own = of(NEW, kernel("attention"), kernel("gemm"), name="own")
    _, found = on_other_device(cluster(OLD), NEW, (of(OLD, kernel("attention"), kernel("gemm")),), KNOWN, (own,))
    assert [(one.name, [entry.kind for entry in one.entries]) for one in found] == [
        ("scaled from old", ["gemm"]), ("own", ["attention"]),
    ]  # fmt: skip


def test_a_scenario_changes_the_device_and_nothing_that_is_the_clusters() -> None:
    overheads = Entry("overheads", "pytorch", "", "", "", "overheads", {}, {"kernel_scale": 1.1})
    links = of(OLD, Entry("collectives", "all_reduce", "", "", "", "x", {}, {}), name="links", cluster="some")
    links = replace(links, accelerator="any")
    before = cluster(OLD)
    after, found = on_other_device(before, NEW, (of(OLD, kernel("gemm"), overheads), links), KNOWN)
    assert after == replace(before, node=Node(8, NEW), usd_per_gpu_hour=None)
    assert [one.name for one in found] == ["scaled from old", "old", "links"]
    assert [one.accelerator for one in found] == ["new", "new", "any"]
    assert found[1].entries == (overheads,)
    assert found[2] == links


@pytest.mark.parametrize("name", ["p100-sxm2-16gb", "t4", "h100-sxm5-80gb"])
def test_an_interval_of_a_scaled_kernel_is_wider(name: str) -> None:
    here, there = catalog.find_accelerator("v100-sxm2-16gb"), catalog.find_accelerator(name)
    calibration = catalog.find_calibration("v100-sxm2-16gb")
    scaled = scaled_calibration(calibration, here, there, catalog.transfer_scores())
    own = {entry.key: entry.held_out_error for entry in calibration.entries}
    assert scaled.entries
    for entry in scaled.entries:
        before = own[entry.key]
        assert entry.held_out_error is not None
        assert before is not None
        assert entry.held_out_error >= before
        if entry.kind in ("gemm", "convolution"):
            assert entry.held_out_error > before


def test_biases_of_linear_layers_are_served_as_biases_are() -> None:
    for kind in ("bias", "linear_bias"):
        assert not what_misses((of(OLD, kernel(kind, "any")),), cluster(OLD))("linear_bias", "forward", "any")
    assert what_misses((of(OLD, kernel("linear_bias", "any")),), cluster(OLD))("bias", "forward", "any")


def test_kernels_that_nobody_serves_are_those_of_the_nearest_device_by_relation_then_by_data_sheet() -> None:
    new = replace(NEW, peak_flop_per_s={"fp32": 20e12, "fp16": 160e12})
    near = replace(new, name="near", chip="B2", peak_flop_per_s={"fp32": 40e12})
    far = replace(near, name="far", peak_flop_per_s={"fp32": 5e12})
    # A sibling in generation that multiplies halves on lanes: what matrix units do elsewhere says more.
    lanes = replace(near, name="lanes", peak_flop_per_s={"fp32": 20e12, "fp16": 40e12})
    halves = kernel("convolution", "fp16")
    of_halves = nearest_fits(new, [(lanes, of(lanes, halves)), (OLD, of(OLD, halves))], KNOWN, lambda *_: True)
    assert [one.name for one in of_halves] == ["scaled from old"]
    known = of(OLD, kernel("gemm", "fp16"), kernel("convolution"), kernel("softmax", "any"))
    others = [(OLD, known), (far, of(far, kernel("convolution"))), (near, of(near, kernel("convolution")))]
    found = nearest_fits(new, others, KNOWN, lambda *_: True)
    served = {(entry.kind, one.name, entry.coefficients["flop"]) for one in found for entry in one.entries}
    # Nothing of the same generation has products. Half the peak rate takes twice as long, and so the reverse.
    assert served == {("gemm", "scaled from old", 0.5e-13), ("convolution", "scaled from near", 2e-13)}
    assert {one.accelerator for one in found} == {"new"}
    assert found[0].entries[0].held_out_error == 0.4


def test_only_measured_fits_of_the_same_kind_of_device_specify_another() -> None:
    fit = kernel("convolution")
    cpu = replace(OLD, name="cpu", kind="cpu")
    others = [
        (OLD, of(OLD, replace(fit, origin="specified"))),
        (OLD, of(OLD, replace(fit, term=LOOKED_UP))),
        (OLD, of(OLD, replace(fit, precision="fp16"))),
        (OLD, of(OLD, kernel("gemm"))),  # of lanes: the data sheet misses by less
        (cpu, of(cpu, fit)),
    ]
    assert nearest_fits(NEW, others, KNOWN, lambda *_: True) == ()
    measured = [(OLD, of(OLD, fit))]
    assert nearest_fits(NEW, measured, KNOWN, lambda *_: False) == ()
    assert len(nearest_fits(NEW, measured, KNOWN, lambda *_: True)) == 1


def test_what_is_scaled_to_a_kepler_reaches_the_lanes_that_are_busy() -> None:
    kepler, slower = replace(NEW, architecture="Kepler"), replace(OLD, name="slower", architecture="Kepler")
    fit = kernel("convolution")

    def flop_s(source: Accelerator, target: Accelerator) -> float:
        return scaled_calibration(of(source, fit), source, target, KNOWN).entries[0].coefficients["flop"]

    assert flop_s(OLD, kepler) == pytest.approx(1.5 * flop_s(OLD, NEW))
    assert flop_s(slower, NEW) == pytest.approx(flop_s(OLD, NEW) / 1.5)
    assert flop_s(slower, kepler) == pytest.approx(flop_s(OLD, NEW))
