"""What overlaps in a synchronous step: strategies by name, as frameworks follow them that say nothing else.

Nothing here imports NumPy when it is loaded, because ``planner --help`` lists the names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["BEST_FUSION", "STRATEGIES", "Strategy"]


@dataclass(frozen=True, slots=True)
class Strategy:
    """What overlaps in a synchronous step.

    Attributes
    ----------
    prefetch : whether input is loaded during the step before
    overlap : whether gradients are sent as they become ready; else after the backward pass
    first_bucket_bytes, bucket_bytes : neighbouring layers are sent together when their gradients are at least so large,
        the first to be ready and the others; 0: each layer by itself
    best_buckets : whether those are sent together that let the last message be done first
    cycle_s : above 0: every so often what is ready goes out together, at most ``bucket_bytes`` a message, none: layer
        by layer; 0: whenever a bucket is ready
    servers : whether the GPUs of a node sum their gradients, push the sum to servers, one on each node, and pull
        weights; else all GPUs sum them around
    """

    prefetch: bool = True
    overlap: bool = True
    first_bucket_bytes: float = 0.0
    bucket_bytes: float = 0.0
    best_buckets: bool = False
    cycle_s: float = 0.0
    servers: bool = False

    @property
    def is_timed(self) -> bool:
        """Whether it depends on what is ready when which gradients are sent together."""
        return self.best_buckets or self.cycle_s > 0


BEST_FUSION = "best-fusion"
STRATEGIES: Mapping[str, Strategy] = {
    "wait-free": Strategy(),
    "no-overlap": Strategy(prefetch=False, overlap=False),
    # Defaults of PyTorch's DistributedDataParallel: the first bucket is small, so that sending begins early.
    "bucketed": Strategy(first_bucket_bytes=2.0**20, bucket_bytes=25 * 2.0**20),
    BEST_FUSION: Strategy(best_buckets=True),
    # Defaults of Horovod since 0.21; before, 64 MiB every 5 ms.
    "tensor-fusion": Strategy(bucket_bytes=128 * 2.0**20, cycle_s=1e-3),
    "parameter-server": Strategy(servers=True),
}
"""Strategies by name, as frameworks follow them that say nothing else."""
