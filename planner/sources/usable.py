"""Which precisions can be priced, and which of them are candidates of a search.

Eight bits (fp8, int8) are no candidate where their products were not measured: a data sheet, or another precision, says
too little of them, and the fastest guess would win every search. `--allow-specified` takes the data sheet's word.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from planner.domain.kernels import KernelCalls
from planner.domain.precision import PRECISIONS
from planner.domain.provenance import DERIVED
from planner.errors import CoverageError, Refusal
from planner.sources.refusals import (
    KERNEL_MISSING,
    absent_precision,
    lossy_precision,
    missing_kernel,
    no_narrow_layer,
    unmeasured_precision,
    unpriced_precision,
)
from planner.sources.sources import Sources
from planner.workload.lowering import lower
from planner.workload.products import narrow_calls

__all__ = ["candidate_precisions", "check_candidate", "check_precision", "why_not_candidate", "why_not_precision"]


def _calls(sources: Sources, precision: str) -> Iterator[KernelCalls]:
    problem, one = sources.problem, np.ones(1, dtype=np.int64)
    convolution = sources.convolution_lowering(precision)
    yield from lower(problem.network, one, convolution=convolution, optimizer=problem.settings.optimizer)


def why_not_precision(sources: Sources, precision: str) -> Refusal | None:
    """Return why a precision cannot be priced; None when every kernel of the network is served."""
    if precision not in sources.accelerator.peak_flop_per_s:
        return absent_precision(precision, sources.accelerator)
    for calls in _calls(sources, precision):
        for name, own in sources.by_precision(calls, precision):
            is_looked_up = sources.layer_calls(name).covers(calls, own)
            if not is_looked_up and sources.find_kernel(calls.kind, calls.direction, name) is None:
                return missing_kernel(sources.problem, sources.for_accelerator, (calls.kind, calls.direction, name))
    return None


def why_not_candidate(
    sources: Sources, precision: str, *, allow_specified: bool = False, allow_lossy: bool = False
) -> Refusal | None:
    """Return why a precision is no candidate of a search; None when it is.

    Each product that runs in 8 bits must have been measured on the device, or on one of the same chip, unless
    ``allow_specified``. One that loses accuracy is none without ``allow_lossy``.
    """
    reason = why_not_precision(sources, precision)
    if reason is None and PRECISIONS[precision].is_lossy and not allow_lossy:
        reason = lossy_precision(precision)
    if reason or allow_specified or not PRECISIONS[precision].measured_only:
        return reason
    network = sources.problem.network
    every = [(calls, narrow_calls(calls, network, precision)) for calls in _calls(sources, precision)]
    narrow = [(calls, own) for calls, own in every if own.any()]
    if not narrow:
        return no_narrow_layer(precision, network.name)
    for calls, own in narrow:
        is_looked_up = sources.layer_calls(precision).covers(calls, own)
        if not is_looked_up and not _is_measured(sources, calls.kind, calls.direction, precision):
            return unmeasured_precision(precision, calls.kind, calls.direction, sources.accelerator)
    return None


def _is_measured(sources: Sources, kind: str, direction: str, precision: str) -> bool:
    source = sources.find_kernel(kind, direction, precision)
    return source is not None and source.provenance.kind != DERIVED and source.origin in ("measured", "published")


def candidate_precisions(
    sources: Sources, *, allow_specified: bool = False, allow_lossy: bool = False, named: Sequence[str] = ()
) -> dict[str, Refusal | None]:
    """Return each training precision with the reason why it is no candidate; None where it is one.

    ``allow_specified``: 8 bits may rest on a data sheet; those that are ``named`` always may. ``allow_lossy``: those
    that lose accuracy may be candidates.
    """
    return {
        name: why_not_candidate(
            sources, name, allow_specified=allow_specified or name in named, allow_lossy=allow_lossy
        )
        for name in PRECISIONS
    }


def check_precision(sources: Sources, precision: str) -> None:
    """Raise CoverageError when a precision cannot be priced."""
    _check(sources, precision, why_not_precision(sources, precision))


def check_candidate(
    sources: Sources, precision: str, *, allow_specified: bool = False, allow_lossy: bool = False
) -> None:
    """Raise CoverageError when a precision is no candidate of a search."""
    allowed = {"allow_specified": allow_specified, "allow_lossy": allow_lossy}
    _check(sources, precision, why_not_candidate(sources, precision, **allowed))


def _check(sources: Sources, precision: str, reason: Refusal | None) -> None:
    if reason and reason.code == KERNEL_MISSING:
        raise CoverageError(reason)
    if reason:
        # In 8 bits only what was measured is offered instead.
        usable = [name for name in PRECISIONS if not why_not_candidate(sources, name)]
        raise unpriced_precision(precision, reason, usable, sources.problem.cluster)
