import pytest

from planner.domain.cluster import Accelerator, Node
from planner.domain.samples import NETWORKS, Samples
from planner.errors import CoverageError
from planner.fitting.calibration import SampleOrigin, fit_calibration
from planner.formats.calibration import CALIBRATION
from planner.networks.zoo import build
from planner.probes.layer_points import layer_points
from planner.workload.calls import distinct_calls

GPU = Accelerator("gpu", "gpu", 16e9, 900e9, {"fp32": 15e12}, 80)
NODE = Node(1, GPU)
ROWS = [
    {
        "kind": "copy", "direction": "forward", "precision": "fp32", "elements": e, "traffic": 2 * e, "fixed_bytes": 0,
        "time_s": 1e-5 + e * 1e-11, "group": f"g{i % 2}",
    }
    for i, e in enumerate((10**4, 10**5, 10**6, 10**7))
] + [{"kind": "copy", "time_s": -1.0}]  # fmt: skip


def test_calibration_says_what_it_saw_and_what_it_left_out() -> None:
    samples = Samples.from_rows(
        list(ROWS), {"origin": "published", "source": "a table", "date": "2019", "threads": "1"}
    )
    calibration = fit_calibration(samples, "mine", GPU, NODE)
    assert (calibration.origin, calibration.source, calibration.date) == ("published", "a table", "2019")
    assert calibration.environment == {"threads": "1"}
    assert calibration.seen == ("g0", "g1")
    assert calibration.warnings == ("1 of 5 rows rejected (time_s must be finite and above 0, got -1: 1)",)
    assert (calibration.accelerator, calibration.node) == ("gpu", NODE)
    assert {entry.origin for entry in calibration.entries} == {"published"}


def test_warning_of_the_samples_comes_first() -> None:
    circumstances = {"warning_more": "and the wet", "warning": "mind the cold", "threads": "1"}
    samples = Samples.from_rows(list(ROWS), circumstances)
    calibration = fit_calibration(samples, "mine", GPU, NODE)
    assert calibration.warnings == (
        "mind the cold",
        "and the wet",
        "1 of 5 rows rejected (time_s must be finite and above 0, got -1: 1)",
    )
    assert calibration.environment == {"threads": "1"}


def test_warnings_of_the_input_side_stand_apart() -> None:
    few = {"kind": "load", "images": 1, "bytes": 1e5, "time_s": 1e-3}
    said = {"warning_input_decode": "no images", "warning_input_storage": "", "warning_steal": "shared", "threads": "1"}
    calibration = fit_calibration(Samples.from_rows([*ROWS[:-1], few], said), "mine", GPU, NODE)
    assert calibration.warnings == ("shared",)
    decode, load = calibration.input_warnings
    assert decode == "no images"
    assert load.startswith("not fitted: load: 1 sizes")
    assert CALIBRATION.parse(CALIBRATION.dump(calibration), "x") == calibration


@pytest.mark.parametrize(
    ("networks", "named"),
    [
        ("", ["activation forward", "attention forward", "gemm forward", "pointwise any"]),
        ("mlp", ["activation forward", "gemm forward", "pointwise any"]),
    ],
)
def test_what_was_made_for_networks_names_kinds_of_their_calls_alone(networks: str, named: list[str]) -> None:
    """An MLP has linear layers and activations, and the generic design begins with every kind that there is."""
    sizes = {"gemm": dict.fromkeys(("m", "n", "k", "batch"), 8), "activation": {"elements": 9, "traffic": 18},
             "attention": {"batch": 1, "queries": 8, "keys": 8, "width": 8, "causal": 0}}  # fmt: skip
    common = {"direction": "forward", "precision": "fp32", "time_s": 1e-5, "library": "pytorch"}
    generic = [{"kind": kind, **common, "fixed_bytes": 0, **work} for kind, work in sizes.items()] * 2
    own = [
        {**common, "kind": p.kind, "direction": p.direction, **p.work, "call": p.call.name, "sub_batch": p.sub_batch}
        for p in layer_points(distinct_calls([build("mlp", {})])) if p.call and p.direction == "forward"
    ]  # fmt: skip
    own = [next(row for row in own if row["kind"] == kind) for kind in ("gemm", "activation")]
    samples = Samples.from_rows([*ROWS[:-1], *generic, *own], {NETWORKS: networks} if networks else {})
    said = [one for one in fit_calibration(samples, "mine", GPU, NODE).warnings if one.startswith("not fitted: ")]
    assert sorted(" ".join(one.split()[2:4]) for one in said) == named


def test_a_given_origin_wins() -> None:
    calibration = fit_calibration(Samples.from_rows(list(ROWS), {}), "mine", GPU, NODE, SampleOrigin(cluster="c"))
    assert (calibration.cluster, calibration.origin) == ("c", "measured")
    published = Samples.from_rows(list(ROWS), {"origin": "published", "cluster": "other"})
    calibration = fit_calibration(published, "mine", GPU, NODE, SampleOrigin(cluster="c"))
    assert (calibration.cluster, calibration.origin) == ("c", "published")


def test_nothing_to_fit_is_a_coverage_error_with_reasons() -> None:
    with pytest.raises(CoverageError, match=r"copy forward any: 1 rows, 3 needed.* row 2: time_s must be finite"):
        fit_calibration(Samples.from_rows([ROWS[0], ROWS[-1]], {}), "mine", GPU, NODE)
