"""Settings: what all configurations of a request share."""

from __future__ import annotations

from dataclasses import dataclass, replace

from planner.domain.buckets import BUCKETED
from planner.domain.framework import PYTORCH, STRATEGIES, Framework, Strategy
from planner.domain.ranks import BEST_ORDER, check_rank_order
from planner.errors import ParameterError

__all__ = ["OPTIMIZERS", "Settings"]

OPTIMIZERS = {
    "none": 0, "sgd": 0, "sgd-momentum": 4, "nesterov": 4, "adagrad": 4, "rmsprop": 4, "adam": 8, "adam-8bit": 2,
}  # fmt: skip
"""Optimizer names and bytes of fp32 state per parameter (adam-8bit: two moments of one byte)."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What all candidates of a request share.

    Attributes
    ----------
    strategy : what overlaps in a synchronous step: ``wait-free``, each layer's gradient is sent when it is ready;
        ``bucketed``, so are buckets of neighbouring layers; ``best-fusion``, so are those buckets that are done first;
        ``tensor-fusion``, what is ready at each cycle; ``parameter-server``, each layer's goes to servers;
        ``no-overlap``, each layer's after the backward pass
    input : {"storage", "synthetic"}
    rank_order : order of planner.domain.ranks.RANK_ORDER in which ranks are numbered; empty: the framework's;
        BEST_ORDER: of each plan that split the network the fastest
    bucket_bytes : gradients of a bucket of strategy ``bucketed`` [byte], the first too; 0: those of the framework
    """

    optimizer: str = "sgd-momentum"
    strategy: str = "wait-free"
    input: str = "storage"
    framework: Framework = PYTORCH
    rank_order: tuple[str, ...] = ()
    bucket_bytes: float = 0.0

    def __post_init__(self) -> None:
        check_rank_order("rank_order", self.placed_by)
        if self.bucket_bytes and self.strategy != BUCKETED:
            raise ParameterError("bucket_bytes", f"0 with strategy {self.strategy}", self.bucket_bytes)
        for what, value, choices in (
            ("optimizer", self.optimizer, tuple(OPTIMIZERS)),
            ("strategy", self.strategy, tuple(STRATEGIES)),
            ("input", self.input, ("storage", "synthetic")),
        ):
            if value not in choices:
                raise ParameterError(what, "one of " + ", ".join(choices), value)

    @property
    def placed_by(self) -> tuple[str, ...]:
        """The order in which ranks are numbered, innermost first, where plans do not choose."""
        return self.framework.rank_order if self.chooses_order else self.rank_order or self.framework.rank_order

    @property
    def chooses_order(self) -> bool:
        """Whether each plan has the order that is fastest for it."""
        return self.rank_order == BEST_ORDER

    @property
    def overlap(self) -> Strategy:
        """What the strategy is in the framework.

        A size that is given is that of the first bucket too, as in DistributedDataParallel with ``bucket_cap_mb``
        (pytorch/pytorch, torch/nn/parallel/distributed.py, ``bucket_bytes_cap_default``).
        """
        own = self.framework.strategies.get(self.strategy, STRATEGIES[self.strategy])
        size = self.bucket_bytes
        return replace(own, first_bucket_bytes=size, bucket_bytes=size) if size else own
