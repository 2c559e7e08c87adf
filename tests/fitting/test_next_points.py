"""Choosing points: a fit of known times, and the rules of the design that it follows."""

import time
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np

from planner.costs.terms import term_named
from planner.domain.cluster import Accelerator
from planner.domain.kernels import BACKWARD_DATA, DIRECTIONS, FORWARD
from planner.domain.layers.record import INPUT, Layer
from planner.domain.network import Network, Point
from planner.fitting.next_points import OWN_ERROR, NextPoints, timing_s, wanted_calls
from planner.networks.zoo import build, zoo_names
from planner.probes.layer_points import layer_points
from planner.probes.points import designed_points, gpu_points
from planner.workload.calls import distinct_calls, layer_calls

CPU = Accelerator("cpu-made-up", "cpu", 8 * 2.0**30, 1e10, {"fp32": 1e11})
NETWORK = Network(
    "small",
    (16, 28, 28),
    (
        Layer("c1", "convolution", (INPUT,), {"channels": 32, "kernel": 3, "padding": 1}),
        Layer("r1", "activation", ("c1",), {}),
        Layer("c2", "convolution", ("r1",), {"channels": 64, "kernel": 1}),
        Layer("p", "global_pool", ("c2",), {}),
        Layer("f", "flatten", ("p",), {}),
        Layer("l", "linear", ("f",), {"features": 10}),
        Layer("loss", "loss", ("l",), {}),
    ),
)
POINTS = designed_points()
OWN = layer_points(distinct_calls([NETWORK]))
TERMS = {"attention": "attention.blocks", "convolution": "cpu.convolution", "gemm": "cpu.product"}


def true_s(point: Point) -> float:
    """Return a time that is linear in the features: each gives 1e-11 s, a call 1e-5 s."""
    term = term_named(TERMS.get(point.kind, "cpu.traffic"))
    work = {name: float(value) for name, value in point.work.items()} | {"itemsize": 4.0}
    features = np.array(term.features(work, {"direction": point.direction}), dtype=np.float64)
    return float(1e-5 * features[0] + 1e-11 * features[1:].sum())


TIMES = {point.name: true_s(point) for point in (*POINTS, *OWN)}


def timings(names: Collection[str]) -> Mapping[str, float]:
    return {name: TIMES[name] for name in names}


def test_the_start_has_every_wanted_kind_and_direction_and_nothing_else() -> None:
    wanted = {(call.kind, call.direction) for call in distinct_calls([NETWORK])}
    by_name = {point.name: point for point in POINTS}
    largest, *started = (by_name[name] for name in NextPoints(POINTS, [NETWORK], CPU).start())
    assert largest.kind == "copy"
    assert largest.work["elements"] == max(point.work["elements"] for point in POINTS if point.kind == "copy")
    designed = {(point.kind, point.direction) for point in POINTS}
    assert {(point.kind, point.direction) for point in started} == wanted & designed
    counts = [sum(point.kind == kind and point.direction == way for point in started) for kind, way in wanted]
    assert max(counts) <= 12


def test_only_points_that_lower_the_error_are_chosen() -> None:
    chooser = NextPoints(POINTS, [NETWORK], CPU)
    chooser.learn(timings(chooser.start()))
    left = TIMES.keys() - set(chooser.start())
    chosen = chooser.choose(left, 1e6)
    wanted = {call.kind for calls in layer_calls(NETWORK).values() for call in calls}
    by_name = {point.name: point for point in POINTS}
    assert {by_name[name].kind for name in chosen} <= wanted
    assert len(set(chosen)) == len(chosen)
    assert not {point.name for point in POINTS if point.kind == "lrn"} & set(chosen)


def test_choices_depend_on_timings_alone_and_keep_to_what_is_left_and_to_the_time() -> None:
    first, second = (NextPoints((*OWN, *POINTS), [NETWORK], CPU) for _ in range(2))
    known = timings(first.start())
    left = sorted(TIMES.keys() - known.keys())
    second.learn({})
    assert first.learn(known) == second.learn(dict(reversed(list(known.items()))))
    assert first.choose(left, 0.5) == second.choose(left, 0.5)
    some = left[::3]
    assert set(first.choose(some, 0.5)) <= set(some)
    assert len(first.choose(left, 0.1)) < len(first.choose(left, 1.0))
    assert first.choose((), 1.0) == ()


def test_expected_error_falls_as_points_are_timed_and_faster_than_in_another_order() -> None:
    chooser, left = NextPoints(POINTS, [NETWORK], CPU), set(TIMES) - {point.name for point in OWN}
    known = set(chooser.start())
    errors = [chooser.learn(timings(known))]
    for _ in range(4):
        known |= set(chooser.choose(left - known, 0.3))
        errors.append(chooser.learn(timings(known)))
    assert errors == sorted(errors, reverse=True)
    in_order = list(chooser.start()) + sorted(left - set(chooser.start()))
    assert errors[-1] < chooser.learn(timings(in_order[: len(known)]))


def test_a_time_of_none_tells_nothing() -> None:
    chooser = NextPoints(POINTS, [NETWORK], CPU)
    known = timings(chooser.start())
    none = {point.name: 0.0 for point in POINTS if point.name not in known}
    assert chooser.learn({**known, **none}) == chooser.learn(known) > 0


def test_each_choice_gains_most_of_all_by_second_count() -> None:
    """Against brute force: of points of one cost, the chosen one leaves less error than most others.

    Not than all: what a fit misses changes with every point that is timed, which no choice can know before.
    """
    chooser = NextPoints(POINTS, [NETWORK], CPU)
    known = set(chooser.start())
    chooser.learn(timings(known))
    short = [point.name for point in POINTS if point.name not in known and TIMES[point.name] < 2e-4]
    alike = [name for name in short if name.startswith("convolution forward")]
    (chosen,) = chooser.choose(alike, 1e-9)
    left = {name: chooser.learn(timings({*known, name})) for name in alike}
    assert sum(left[chosen] < other for other in left.values()) >= 0.75 * len(left)


def test_calls_timed_as_they_are_leave_their_own_error_alone() -> None:
    chooser = NextPoints((*OWN, *POINTS), [NETWORK], CPU)
    before = chooser.learn(timings([point.name for point in POINTS]))
    after = chooser.learn(timings(TIMES))
    assert after < before
    assert after <= OWN_ERROR
    assert chooser.learn(timings([point.name for point in OWN])) <= OWN_ERROR


def test_a_call_is_chosen_with_all_its_sub_batches_the_ends_first() -> None:
    chooser = NextPoints(OWN, [NETWORK], CPU)
    chooser.learn({})
    chosen = chooser.choose({point.name for point in OWN}, 1e6)
    places = [(point.kind, point.direction, point.call.name, point.sub_batch) for point in OWN if point.call]
    by_name = dict(zip((point.name for point in OWN), places, strict=True))
    found = [by_name[name] for name in chosen]
    groups = [[one for one in found if one[:3] == call] for call in dict.fromkeys(one[:3] for one in found)]
    assert [one for group in groups for one in group] == found
    for group in groups:
        sub_batches = [one[3] for one in group]
        assert sub_batches[:2] == sorted({min(sub_batches), max(sub_batches)})
    assert len(found) == len(OWN)


def test_precisions_have_points_of_their_own() -> None:
    half = [Point(p.kind, p.direction, p.work, p.geometry, precision="bf16") for p in POINTS if p.kind == "gemm"]
    chooser = NextPoints((*POINTS, *half), [NETWORK], CPU, ("fp32", "bf16"))
    started = set(chooser.start())
    assert started & {point.name for point in half}
    chooser.learn({})
    chosen = set(chooser.choose([point.name for point in half], 1e6))
    assert chosen == {point.name for point in half if point.work["batch"] == 1}


def test_nothing_is_chosen_that_takes_longer_than_what_is_left() -> None:
    chooser = NextPoints(POINTS, [NETWORK], CPU)
    chooser.learn(timings(chooser.start()))
    left = TIMES.keys() - set(chooser.start())
    assert max(TIMES[name] for name in chooser.choose(left, 1e6)) > 0.02
    assert max(TIMES[name] for name in chooser.choose(left, 1e6, 0.05)) < 0.02
    assert chooser.choose(left, 1e6, 1e-3) == ()


def test_choosing_takes_little_of_the_time_that_measuring_does() -> None:
    networks = [build(name, {}) for name in zoo_names()]
    chooser = NextPoints(POINTS, networks, CPU)
    known, left, measuring_s, began_s = set(chooser.start()), set(TIMES), 0.0, time.process_time()
    for _ in range(10):
        chooser.learn(timings(known))
        chosen = chooser.choose(left - known, 1.5)
        measuring_s += float(timing_s(np.array([TIMES[name] for name in chosen])).sum())
        known |= set(chosen)
    assert time.process_time() - began_s < 0.03 * measuring_s


def test_biases_of_convolutions_are_wanted_on_a_gpu_alone() -> None:
    here, gpu = (wanted_calls([NETWORK], ["fp32"], on_gpu=on_gpu) for on_gpu in (False, True))
    apart = {("bias", "forward", "any"), ("bias", "backward_weight", "any")}
    assert set(gpu) == set(here) | apart
    assert not set(here) & apart
    assert [len(gpu[key]) for key in apart] == [2, 2]  # of two convolutions, and not of the linear layer
    start = {point.name: point for point in gpu_points(("fp32",))}
    named = NextPoints(tuple(start.values()), [NETWORK], replace(CPU, kind="gpu", multiprocessors=80)).start()
    assert {(start[name].kind, start[name].direction, "any") for name in named} >= apart


def test_every_precision_has_enough_points_in_the_start_those_of_fp32_first() -> None:
    """As many as a fit needs of each product, convolution and direction; in 8 bits of products alone."""
    gpu = replace(CPU, kind="gpu", multiprocessors=80)
    precisions, products = ("fp32", "tf32", "fp16", "bf16"), ("int8", "fp8")
    by_name = {point.name: point for point in gpu_points((*precisions, *products))}
    started = [
        by_name[name] for name in NextPoints(tuple(by_name.values()), [NETWORK], gpu, precisions, products).start()
    ]
    counts = Counter((point.precision, point.kind, point.direction) for point in started)
    for precision in precisions:
        for kind, least in (("convolution", 8), ("gemm", 12)):
            assert {counts[precision, kind, way] for way in DIRECTIONS[:3]} == {least}
    assert {key[1:]: count for key, count in counts.items() if key[0] == "int8"} == {
        ("gemm", FORWARD): 12, ("gemm", BACKWARD_DATA): 12,
    }  # fmt: skip
    assert {(key[1], count) for key, count in counts.items() if key[0] == "fp8"} == {("gemm", 12)}
    matrices = [point.precision == "fp32" for point in started if point.kind in ("convolution", "gemm")]
    assert matrices == sorted(matrices, reverse=True)


def test_products_of_8_bits_are_chosen_but_are_in_no_expected_error() -> None:
    gpu = replace(CPU, kind="gpu", multiprocessors=80)
    points = gpu_points(("fp32", "fp8"))
    plain, chooser = NextPoints(points, [NETWORK], gpu), NextPoints(points, [NETWORK], gpu, ("fp32",), ("fp8",))
    known = {point.name: 1e-4 for point in points if point.precision == "fp32"}
    assert chooser.learn(known) == plain.learn(known)
    eighths = [point.name for point in points if point.precision == "fp8"]
    assert plain.choose(eighths, 1.0) == ()
    assert chooser.choose(eighths, 1.0)
    assert chooser.learn({**known, **dict.fromkeys(eighths, 1e-5)}) == plain.learn(known)


def test_what_tf32_and_16_bits_leave_in_fp32_is_one_call_of_all_their_steps() -> None:
    network = build("bert", {"layers": "1", "hidden": "64", "heads": "2", "sequence": "16", "vocabulary": "100"})
    found = wanted_calls([network], ("fp32", "tf32", "bf16"))
    for kind, way, steps in (
        ("update", "update", {0, 1, 2}), ("embedding", FORWARD, {0, 1, 2}), ("layer_norm", FORWARD, {0, 1}),
    ):  # fmt: skip
        singles = [call for name, call in found[kind, way, "any"].items() if name.startswith("fp32 ")]
        assert singles
        assert all(set(call.counts) == steps for call in singles)
    assert all(set(call.counts) == {1} for call in found["gemm", FORWARD, "tf32"].values())
