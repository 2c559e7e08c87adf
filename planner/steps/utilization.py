"""Utilization of devices by model and by hardware FLOP, of networks with attention, by definition.

MFU = model FLOP of a sample, three times its forward pass (what is left of that with frozen layers), times samples a
second, over the peak of all devices in the precision of training (Chowdhery et al. 2022, arXiv:2204.02311). HFU counts
what is computed again, too (Korthikanti et al. 2022, arXiv:2205.05198): of ``full`` blocks, of ``selective`` attention
that keeps its weights. Both count every pair of positions, also those that a causal mask hides, as these papers do;
what is padded or sent is not counted.
"""

from __future__ import annotations

import numpy as np

from planner.domain.configuration import Configuration
from planner.domain.split import RECOMPUTES
from planner.sources.sources import Sources
from planner.steps.stage_cases import StageLayout, units_ahead
from planner.workload.program import block_starts, program
from planner.workload.units import units_of

__all__ = ["utilization"]


def utilization(
    sources: Sources, one: Configuration, samples_per_s: float, layout: StageLayout | None = None
) -> tuple[float | None, float | None]:
    """Return MFU and HFU, to six digits; None of networks without attention, and without a peak rate.

    ``layout``: what stages compute again, where they choose.
    """
    network, peak = sources.problem.network, sources.accelerator.peak_flop_per_s.get(one.precision)
    if not block_starts(network) or not peak:
        return None, None
    of = program(network)
    units = units_of(network, of)
    forward = 2.0 * np.array([site.forward_mac for site in of.sites], dtype=np.float64)[of.site]
    ahead = units_ahead(units)
    if layout is None:
        kinds, held = [one.recompute], ahead[-1:]
    else:
        (first, _, again), kinds = layout.layers, [RECOMPUTES[code] for code in layout.recompute.tolist()]
        held = ahead[first + again] - ahead[first]
    both = forward, forward * units.repeats_attention
    full, selective = (units.of_distinct(some) * (units.reached > 0) for some in both)
    repeated = {"full": full, "selective": selective}
    nothing = np.zeros(units.distinct)
    more = sum(float(blocks @ repeated.get(kind, nothing)) for kind, blocks in zip(kinds, held, strict=True))
    rate = samples_per_s / (peak * one.gpus)
    trained = sum(float(site.training_flop * count) for site, count in of.site_counts())
    model = trained if network.has_frozen else 3.0 * float(forward.sum())
    mfu, hfu = (float(f"{flop * rate:.6g}") for flop in (model, model + more))
    return mfu, hfu
