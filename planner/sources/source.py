"""What every source of coefficients has in common: its needs, and refusals where nothing serves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from planner.costs.specified import specified_entry
from planner.domain.calibration import Calibration, Entry
from planner.domain.cluster import Accelerator, Cluster
from planner.domain.kernels import FORWARD
from planner.domain.network import LOOKED_UP
from planner.domain.precision import PRECISIONS
from planner.domain.provenance import ASSUMED, DATASHEET, EXACT, FIT, Provenance
from planner.domain.request import Problem
from planner.errors import CoverageError, Refusal
from planner.numbers import constant

LARGEST_MISS = constant("serving.largest_miss")
"""Held-out error up to which an entry is used: above it, any other source says more."""


def is_used(entry: Entry) -> bool:
    """Tell whether an entry serves anything: not where it misses what it was not fitted to by more than LARGEST_MISS.

    Calls that were measured as they are need no fit: the error is that of those between them.
    """
    return entry.held_out_error is None or entry.held_out_error <= LARGEST_MISS or entry.term == LOOKED_UP


def unsure(entry: Entry, mean: float, by: str, of_sums: float | None = None) -> Entry:
    """Return an entry that was made of another, with the mean error of such ones, or its own where that is larger.

    ``of_sums``: that of sums over many shapes, which is never taken to be less than the entry's own; None: not known
    apart.
    """
    sums = None if of_sums is None else max(of_sums, entry.miss_of_sums or 0.0)
    own = entry.miss or 0.0
    return replace(entry, held_out_error=max(mean, own), held_out_by=by, worst_error=None, sum_error=sums)


def miss_in_words(entry: Entry, calibration: str) -> str:
    """Return which entry is not used, and why."""
    name = " ".join(filter(None, (entry.kind.replace("_", " "), entry.direction.replace("_", " "))))
    return f"{name} of {calibration} misses rows that were left out of its fit by {entry.held_out_error:,.0%}"


@dataclass(frozen=True, slots=True)
class Source:
    """An entry and where it comes from."""

    entry: Entry
    provenance: Provenance

    @property
    def origin(self) -> str:
        """Origin of the entry."""
        return self.entry.origin

    @property
    def calibration(self) -> str:
        """Name of the calibration that holds it, as answers name it; empty: a data sheet or an assumption."""
        return self.provenance.name


def source_of(entry: Entry, calibration: Calibration | None = None) -> Source:
    """Return an entry with its provenance; without a calibration it is a data sheet's, or an assumption."""
    origin = Provenance(FIT) if calibration is None else calibration.provenance
    of_origin = {"specified": DATASHEET, "assumed": ASSUMED}.get(entry.origin, FIT)
    own = EXACT if entry.term == LOOKED_UP else of_origin
    return Source(entry, replace(origin, kind=own) if origin.kind == FIT else origin)


KERNEL_MISSING, PRECISION_LOSSY = "kernel_missing", "precision_lossy"


def missing_kernel(problem: Problem, served: Sequence[Calibration], kernel: tuple[str, str, str]) -> Refusal:
    """Return that a kernel (kind, direction, precision) is in none of the calibrations that serve the accelerator."""
    accelerator = problem.cluster.node.accelerator
    kind, direction, precision = kernel
    looked_at = ", ".join(c.name for c in served) or "none"
    also = "".join(
        f" and {c.name}, which was reconstructed for {c.cluster} alone"
        for c in problem.calibrations
        if c.accelerator == accelerator.name and c.name not in {one.name for one in served}
    )
    also += "".join(
        f", and {miss_in_words(entry, c.name)}"
        for c in problem.calibrations
        if c.accelerator == accelerator.name
        for entry in c.entries
        if entry.scope == "kernels" and (entry.kind, entry.direction or direction) == (kind, direction)
        if entry.precision in (precision, "any") and not is_used(entry)
    )
    is_specified = specified_entry(accelerator, *kernel) is not None
    instead = ", or, to use specifications, leave out --only-calibration" if is_specified else ""
    name = f"kernel {kind} {direction} in {precision}"
    return Refusal(
        KERNEL_MISSING,
        f"{name} must be covered by a calibration of {accelerator.name}",
        name,
        f"{looked_at} without it{also}",
        f"; {measuring(accelerator) if _is_timed(precision, kind, direction, accelerator) else FITTING}{instead}",
    )


FITTING = "fit measurements of it with `planner calibrate --samples DIR`"


def _is_timed(precision: str, kind: str, direction: str, accelerator: Accelerator) -> bool:
    """Tell whether PyTorch has a kernel to time: of convolutions in 8 bits it has those forward on a CPU alone."""
    is_narrow = kind == "convolution" and precision in PRECISIONS and PRECISIONS[precision].measured_only
    return not is_narrow or (accelerator.kind, direction) == ("cpu", FORWARD)


MEASURED_ON_CPUS = ("fp32", "bf16", "int8")
"""Precisions that `planner calibrate` times kernels of a CPU in."""


def absent_precision(precision: str, accelerator: Accelerator) -> Refusal:
    """Return why an accelerator has no rate in a precision: of a CPU only those that were measured are known."""
    is_cpu = accelerator.kind == "cpu"
    rule = f"{accelerator.name} {'was not measured in' if is_cpu else 'does not have'} {precision}"
    return Refusal("precision_absent", rule, precision)


def unmeasured_precision(precision: str, kind: str, direction: str, accelerator: Accelerator) -> Refusal:
    """Return that products in 8 bits were not measured, and what measures them or takes them from the data sheet."""
    device = "cpu" if accelerator.kind == "cpu" else "cuda"
    is_timed = _is_timed(precision, kind, direction, accelerator)
    measures = f"--device {device} --precision {precision}" if is_timed else "--samples DIR"
    rule = f"no {kind} in {precision} was measured on {accelerator.name}"
    remedy = f": measure with `planner calibrate {measures}`, or take the data sheet's word with --allow-specified"
    return Refusal("precision_unmeasured", rule, precision, rest=remedy)


def unpriced_precision(precision: str, reason: Refusal, usable: Sequence[str], cluster: Cluster) -> CoverageError:
    """Return the error that steps in a precision cannot be priced, with those that can be.

    Where a named calibration prices none, those that specifications do.
    """
    accelerator = cluster.node.accelerator
    sheet_precisions = [
        x for x, one in PRECISIONS.items() if x in accelerator.peak_flop_per_s and not one.measured_only
    ]
    *most, last = usable or sheet_precisions or [""]
    names = f"{', '.join(most)} or {last}" if most else last
    instead = f"ask for --precision {names}" if names else measuring(accelerator)
    if sheet_precisions and not usable:
        instead += " and, to use specifications, leave out --only-calibration"
    if accelerator.kind == "cpu" and precision in MEASURED_ON_CPUS:
        instead += f", or measure it there with `planner calibrate --device cpu --network NAME --precision {precision}`"
    rule = f"precision must be one that can be priced ({', '.join(usable) or 'none here'})"
    return CoverageError(Refusal(reason.code, rule, "precision", f"{precision!r}: {reason}", f"; {instead}"))


def measuring(accelerator: Accelerator) -> str:
    """Return the command that makes a calibration of an accelerator."""
    if accelerator.kind == "cpu":
        return "measure the network's layers on that device with `planner calibrate --device cpu --network NAME`"
    return (
        "measure on that device with `planner calibrate --device cuda`, or fit measurements of it with "
        "`planner calibrate --samples DIR`"
    )


def missing_link(cluster: Cluster, name: str, why: str) -> CoverageError:
    """Return the error that a link is not described."""
    link, remedy = f"links.{name} of cluster {cluster.name}", f"; give a cluster file with [links.{name}] by --cluster"
    return CoverageError(Refusal("link_missing", f"{link} must be described ({why})", link, "nothing", remedy))
