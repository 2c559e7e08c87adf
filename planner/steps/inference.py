"""Inference: what a batch takes on one device, forward alone, with its memory.

    latency(b) = (GPU^p + host^p)^(1/p), GPU = sum over kernels of their time at batch b

Kernels are those of :mod:`planner.workload.fusion`, as they were timed by themselves: scales that were fitted to
training steps do not apply, nor what these are unsure by. The interval is of what fits of kernels missed of shapes that
they had not seen, and of the host time. Convolutions and products in 8 bits hand on 8 bits: scales are applied in the
epilogue, and nothing is cast between them. Replicas share nothing; one stream of batches each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil

import numpy as np

from planner.domain.arrays import FloatArray, IntArray
from planner.domain.kernels import FORWARD, MATRIX_KINDS, KernelCalls
from planner.domain.precision import precision_named
from planner.domain.prediction import Batch
from planner.errors import CoverageError, ParameterError, Refusal
from planner.numbers import constant
from planner.sources.source import Source, absent_precision
from planner.sources.sources import Sources
from planner.steps.compute import RankCompute, call_work, host_s, memory_rules
from planner.steps.describe import add_parts
from planner.steps.host_and_gpu import CallCounts
from planner.steps.intervals import Gradient, quantity
from planner.steps.kernel_rows import rows_of
from planner.steps.stages import Composed, TimedCalls, composed_stages
from planner.workload.fusion import forward_calls, live_elements

HOST_SHARE = constant("inference.host_share")
"""Host time of an operation without gradients over that in training (docs/numbers.md)."""


def check_batch(precision: str, sub_batch: int) -> None:
    """Raise ParameterError where a batch is not lawful in a precision, naming the nearest."""
    multiple = precision_named(precision).batch_multiple
    if sub_batch % multiple:
        below = sub_batch // multiple * multiple
        nearest = f"are {below} and {below + multiple}" if below else f"is {multiple}"
        rule = f"a multiple of {multiple} in {precision}"
        raise ParameterError("--sub-batch", rule, sub_batch, f"the nearest {nearest}")


class _Forward(RankCompute):
    """The forward pass of a network on one device."""

    def __init__(self, sources: Sources, precision: str) -> None:
        super().__init__(sources, precision, np.zeros(len(sources.problem.network.layers), dtype=np.bool_), 1)
        self.is_fused = "epilogue" in self.framework.fuses

    def lowered(self, sub_batch: IntArray) -> tuple[KernelCalls, ...]:
        calls = forward_calls(super().lowered(sub_batch), self.program, is_fused=self.is_fused)
        share = self.precision.weight_bytes / self.precision.activation_bytes if self.is_fused else 1.0
        return tuple(one if share == 1 or one.kind in MATRIX_KINDS else _narrowed(one, share) for one in calls)

    def _casts(self, calls: KernelCalls, precision: str) -> Iterator[tuple[KernelCalls, Source]]:
        return iter(()) if self.is_fused else super()._casts(calls, precision)

    def served(self, sub_batch: int) -> list[tuple[KernelCalls, Source]]:
        """Return the calls of a batch and what serves them; those without operations of their own launch nothing."""
        every = self.calls_with_sources(np.array([sub_batch], dtype=np.int64))["forward"]
        return [(calls, _without_launch(source) if _is_inside(calls) else source) for calls, source in every]


def _narrowed(calls: KernelCalls, share: float) -> KernelCalls:
    """Return calls whose tensors stay in 8 bits from product to product."""
    traffic: FloatArray = np.asarray(calls.work["traffic"] * share, dtype=np.float64)
    return replace(calls, work={**calls.work, "traffic": traffic})


def _is_inside(calls: KernelCalls) -> bool:
    return calls.kind == "add" and calls.operations is not None and not np.any(calls.operations)


def _without_launch(source: Source) -> Source:
    coefficients = {name: 0.0 if name == "calls" else value for name, value in source.entry.coefficients.items()}
    return replace(source, entry=replace(source.entry, coefficients=coefficients))


class Inference:
    """Batches of one network in one precision on one device.

    CoverageError: the device does not have the precision, or nothing serves a kernel.
    """

    def __init__(self, sources: Sources, precision: str) -> None:
        if precision not in sources.accelerator.peak_flop_per_s:
            raise _absent(sources, precision)
        self.sources, self.precision = sources, precision
        self.forward = _Forward(sources, precision)
        of_training = sources.overheads(precision, "sync").scaled(1.0, HOST_SHARE, 1.0)
        self.overheads = replace(
            of_training, kernel_scale=sources.problem.scenario.kernel_factor, convolution_scale=1.0, product_scale=1.0,
            scale_doubt=None,
        )  # fmt: skip

    def allows(self, sub_batch: int) -> bool:
        """Tell whether a batch is lawful."""
        return sub_batch % precision_named(self.precision).batch_multiple == 0

    def batch(self, sub_batch: int) -> Batch:
        """Return what a batch takes, kernel by kernel; ParameterError: it is not lawful."""
        check_batch(self.precision, sub_batch)
        forward = self.forward
        served = forward.served(sub_batch)
        groups = [
            TimedCalls(calls, source, call_work(calls, forward.itemsize), forward.program, 1)
            for calls, source in served
        ]
        rows = rows_of(forward, served, self.overheads.scales)
        started = np.array([sum(float(np.sum(calls.count)) for calls, _ in served if not _is_inside(calls))])
        zero = np.zeros(())
        host = np.asarray(host_s(self.sources, self.overheads, CallCounts(started, started, zero), zero))
        gpu_s = np.array([sum(row.seconds for row in rows)])
        factor = float(self.sources.multiplied(FORWARD, np.ones(()), self.precision))
        held = forward.program.repeats.astype(np.float64)
        (stage,) = composed_stages(self.overheads, FORWARD, groups, Composed(held, gpu_s, host, host, factor))
        gradient = Gradient()
        add_parts(gradient, stage.parts, held)
        calibrations = tuple(dict.fromkeys(source.calibration for _, source in served if source.calibration))
        origins = tuple(dict.fromkeys(source.origin for _, source in served))
        latency = quantity(stage.seconds, gradient.spread())
        return Batch(self.precision, sub_batch, latency, self.memory(sub_batch), tuple(rows), calibrations, origins)

    def memory(self, sub_batch: int) -> dict[str, float]:
        """Return bytes by kind: weights, tensors that are there at once, context; no gradients and no optimizer."""
        sizes = precision_named(self.precision)
        each = sizes.weight_bytes if self.forward.is_fused else sizes.activation_bytes
        return {
            "weights": float(each * self.forward.program.parameters),
            "activations": float(each * live_elements(self.sources.problem.network) * sub_batch),
            "framework": memory_rules(self.sources, self.precision).framework_bytes,
        }


def _absent(sources: Sources, precision: str) -> CoverageError:
    accelerator = sources.accelerator
    why = absent_precision(precision, accelerator)
    names = ", ".join(accelerator.peak_flop_per_s)
    rule = f"precision must be one that {accelerator.name} has ({names})"
    return CoverageError(Refusal(why.code, rule, "precision", precision, "; ask for one of these"))


def replicas_of(
    batches: Sequence[Batch], gpus: int, latency_s: float | None, rate: float | None
) -> list[tuple[Batch, int]]:
    """Return batches within a latency with the replicas that reach a rate, best first: fewest, then least latency.

    Of each precision the batch that needs the fewest. Without a rate one replica each, most samples/s first.

    ``gpus``: replicas at most; ``latency_s``: the most that a batch may take [s]; ``rate``: of all replicas together
    [samples/s].
    """
    plans: dict[str, tuple[Batch, int]] = {}
    within = [one for one in batches if latency_s is None or one.latency_s <= latency_s]
    for one in sorted(within, key=lambda one: one.samples_per_s if rate is None else -one.latency_s):
        count = 1 if rate is None else ceil(rate / one.samples_per_s)
        if count <= gpus and (one.precision not in plans or count <= plans[one.precision][1]):
            plans[one.precision] = one, count
    if rate is None:
        return sorted(plans.values(), key=lambda plan: -plan[0].samples_per_s)
    return sorted(plans.values(), key=lambda plan: (plan[1], plan[0].latency_s))
