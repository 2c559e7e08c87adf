from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from planner.domain.calibration import Calibration, Entry, MeasuredStep
from planner.domain.cluster import Cluster
from planner.domain.configuration import Configuration
from planner.domain.kernels import LayerWork, WorkTotals
from planner.domain.layers.record import Layer
from planner.domain.network import Network
from planner.domain.provenance import ConformalScore
from planner.report import show
from planner.report.blocks import Block

Printed = Callable[[Iterable[Block]], str]

NETWORK = Network("tiny", (3, 8, 8), (Layer("fc", "linear", ("input",), {"features": 10}),), notes="made up")
TOTALS = WorkTotals(1930, 1930, 1920, 7680, 4)


def test_a_network_shows_layers_and_totals(printed: Printed) -> None:
    layers = [LayerWork(1930, 1930, 1920, 7680, "fc", "linear", (10,))]
    text = printed(show.network_view(NETWORK, layers, TOTALS, {"stride": "where it is"}))
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[:3] == [
        "tiny: input 3 x 8 x 8",
        "layer kind output parameters forward FLOP",
        "fc linear 10 1,930 3,840",
    ]
    assert "parameters 1,930" in lines
    assert "forward 3,840 FLOP (1,920 multiply-adds)" in lines
    assert "forward and backward 7,680 FLOP" in lines
    assert "stride where it is" in lines


def test_networks_are_listed_with_parameters_and_flop(printed: Printed) -> None:
    text = printed(show.networks_view([(NETWORK, TOTALS)]))
    assert " ".join(text.splitlines()[-1].split()) == "tiny 3 x 8 x 8 1 1.93 k 3.84 k 7.68 k -"


def test_a_cluster_shows_links_accelerator_and_sources(cluster: Cluster, printed: Printed) -> None:
    words = " ".join(printed(show.cluster_view(cluster)).split())
    assert "nodes 42 x 8 k80 host memory 64 GiB" in words
    assert "between nodes 7 GB/s infiniband, 2 us" in words
    assert "inside a node" not in words
    assert "storage 2 GB/s shared by all nodes" in words
    assert "peak rates fp32 4.37 TFLOP/s" in words
    assert "Sources nodes paper" in words
    listing = printed(show.clusters_view([cluster, replace(cluster, name="no-links", inter_node=None, storage=None)]))
    assert "tsubame-kfc     42     8  k80  7 GB/s infiniband\nno-links        42     8  k80  -\n" in listing


def test_a_calibration_shows_formula_coefficients_errors_ranges_and_origin(
    calibration: Calibration, printed: Printed
) -> None:
    words = " ".join(printed(show.calibration_view(calibration, {"work.linear": "alpha + beta W"})).split())
    assert "origin reconstructed source Oyama et al. 2016 date 2016-08-01" in words
    assert "kernels gemm forward fp32 work.linear: alpha + beta W" in words
    assert "held-out error 5.12% by group, worst 21.00%" in words
    assert "alpha 1.5e-05 2e-06 1 1" in words
    assert "beta 2.1e-13 - 1e+06 1e+11" in words
    assert "worst point" not in words
    entry = replace(calibration.entries[0], worst_point="m=64 n=3 k=5: 2 ms", source="one; two; one")
    marked = replace(calibration, entries=(entry,), source="one; two; one; two")
    text = " ".join(printed(show.calibration_view(marked, {})).split())
    assert "worst point m=64 n=3 k=5: 2 ms" in text
    assert "source one; two date" in text
    assert "origin measured, one; two" in text
    assert "fixed beta" in words
    assert "grid (1, 2, 3, 4, ...)" in words
    listing = printed(show.calibrations_view([calibration]))
    assert "tsubame-kfc  tsubame-kfc  reconstructed        1        5%" in listing


def test_a_coefficient_at_its_bound_has_no_error(calibration: Calibration, printed: Printed) -> None:
    entry = replace(
        calibration.entries[0],
        coefficients={"alpha": 0.0, "beta": 0.0, "gamma": 0.0},
        standard_errors={"alpha": 0.0, "beta": 1e-9},
    )
    words = " ".join(printed(show.calibration_view(replace(calibration, entries=(entry,)), {})).split())
    assert "alpha 0 held at 0 1 1" in words
    assert "beta 0 1e-09 1e+06" in words
    assert "gamma 0 - - -" in words


def test_settings_that_are_empty_are_left_out(calibration: Calibration, printed: Printed) -> None:
    settings: dict[str, float | str | tuple[float, ...]] = {"direction": "", "flop_efficiency": 0.5, "mean": "roofline"}
    entry = replace(calibration.entries[0], settings=settings)
    lines = printed(show.calibration_view(replace(calibration, entries=(entry,)), {})).splitlines()
    (line,) = [one for one in lines if one.startswith("settings")]
    assert line.split() == ["settings", "flop_efficiency", "0.5,", "mean", "roofline"]


def test_a_formula_stands_by_coefficients_and_its_units_are_told(calibration: Calibration, printed: Printed) -> None:
    scales = Entry("overheads", "pytorch", "", "", "", "overheads", {}, {"kernel_scale": 1.5, "exponent": 3.0})
    one = replace(calibration, entries=(scales,))
    words = " ".join(printed(show.calibration_view(one, {"overheads": "kernel_scale·K"})).split())
    assert words.count("overheads: kernel_scale·K") == 1
    assert "scales, shares and exponents are mere numbers" in words


@pytest.mark.parametrize(
    ("by", "said"), [("", "assumed error 6.50%"), ("sub-batch", "held-out error 6.50% by sub-batch")]
)
def test_an_error_of_calls_that_was_not_measured_is_called_assumed(
    by: str, said: str, calibration: Calibration, printed: Printed
) -> None:
    entry = Entry(
        "kernels", "gemm", "forward", "fp32", "", "calls.measured", {"n=1n": (1.0, 2.0)}, {"measured": 1.0},
        error=0.02, held_out_error=0.065, held_out_by=by,
    )  # fmt: skip
    known = replace(calibration, entries=(entry,))
    assert said in " ".join(printed(show.calibration_view(known, {})).split())
    assert ("assumed" in printed(show.fit_view(known, "x.json"))) == (by == "")
    once = replace(known, entries=(replace(entry, held_out_error=0.02),))
    assert "assumed" not in printed(show.calibration_view(once, {}))


def test_measured_runs_are_a_table_of_networks_and_plans(calibration: Calibration, printed: Printed) -> None:
    passes = MeasuredStep("resnet18", "", "pytorch", Configuration(1, 2, 8, tensor_parallel=2), 0.9, 3, "passes")
    step = MeasuredStep("resnet18", "toy", "pytorch", Configuration(2, 8, 4), 1.05664, 1)
    known = replace(calibration, entries=(), measured_steps=(passes, step))
    for view in (show.calibration_view(known, {}), show.fit_view(known, "x.json")):
        words = " ".join(printed(view).split())
        assert "network cluster framework of plan runs factor" in words
        assert "resnet18 - pytorch passes sub-batch 8, fp32, tensor" in words
        assert "resnet18 toy pytorch step 2 nodes x 8 GPUs, sub-batch 1 1.057 4, fp32" in words  # in two lines


def test_weights_of_stored_points_are_counted_not_listed(calibration: Calibration, printed: Printed) -> None:
    entry = replace(calibration.entries[0], coefficients={"level": 0.25, "point_1": 1.5, "point_2": -1.25})
    view = show.calibration_view(replace(calibration, entries=(entry,)), {}, stored=lambda _: ("point_1", "point_2"))
    text = printed(view)
    words = " ".join(text.split())
    assert "points 2 stored calls" in words
    assert "level 0.25" in words
    assert "point_1" not in words


def test_a_calibration_shows_its_conformal_scores(calibration: Calibration, printed: Printed) -> None:
    plain = printed(show.calibration_view(calibration, {}))
    assert "onformal" not in plain
    outside = ConformalScore(0.47, 0.9, 21, 1038)
    few = ConformalScore(None, 0.9, 3, 5, "groups must be at least 10, got 3")
    known = replace(calibration, conformal={"one_gpu_specified_outside": outside, "one_gpu_measured": few})
    text = printed(show.calibration_view(known, {}))
    words = " ".join(text.split())
    assert "Conformal intervals: ends are so many times the value, and one over that" in words
    assert "one gpu specified outside 1.60 90% 21 1,038" in words
    assert "one gpu measured - 90% 3 5" in words
    assert "- groups must be at least 10, got 3" in words
    assert max(map(len, text.splitlines())) <= 80
