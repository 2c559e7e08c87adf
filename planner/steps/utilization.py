"""Utilization of devices by model and by hardware FLOP, of transformers, by definition.

MFU = model FLOP of a sample, three times its forward pass, times samples a second, over the peak of all devices in the
precision of training (Chowdhery et al. 2022, arXiv:2204.02311). HFU counts what is computed again, too (Korthikanti et
al. 2022, arXiv:2205.05198). Both count every pair of positions, also those that a causal mask hides, as these papers
do; what is padded or sent is not counted.
"""

from __future__ import annotations

from planner.domain.configuration import Configuration
from planner.domain.split import RECOMPUTES
from planner.domain.transformer import Transformer
from planner.sources.sources import Sources
from planner.steps.laid_stages import StageLayout
from planner.workload.transformer import recomputed_flop, stage_blocks, training_flop

__all__ = ["utilization"]


def utilization(
    sources: Sources, one: Configuration, samples_per_s: float, layout: StageLayout | None = None
) -> tuple[float | None, float | None]:
    """Return MFU and HFU, to six digits; None of other networks than transformers, and without a peak rate.

    ``layout``: what stages compute again, where they choose.
    """
    of = sources.problem.network.transformer
    peak = sources.accelerator.peak_flop_per_s.get(one.precision)
    if of is None or not peak:
        return None, None
    model = training_flop(of)
    rate = samples_per_s / (peak * one.gpus)
    again = recomputed_flop(of, one.recompute) if layout is None else _of_stages(of, layout)
    both = model * rate, (model + again) * rate
    mfu, hfu = (float(f"{one:.6g}") for one in both)
    return mfu, hfu


def _of_stages(of: Transformer, layout: StageLayout) -> int:
    """Return the FLOP that all stages of a sample compute again."""
    counts = stage_blocks(of, layout.stage, layout.stage, layout.layers.computed_again)
    return sum(
        recomputed_flop(of, RECOMPUTES[code], layers=[(kind, int(count[at])) for kind, count in counts])
        for at, code in enumerate(layout.recompute.tolist())
    )
