"""A data set: how many samples an epoch has, and how many bytes each is read as."""

from __future__ import annotations

from dataclasses import dataclass

from planner.domain.arrays import check_count, check_positive

__all__ = ["Dataset"]


@dataclass(frozen=True, slots=True)
class Dataset:
    """``samples`` of one epoch, ``bytes_per_sample`` as stored (encoded), with the source of the figures."""

    name: str
    samples: int
    bytes_per_sample: float
    source: str = ""

    def __post_init__(self) -> None:
        check_count("samples", self.samples, most=10**13)
        check_positive("bytes_per_sample", self.bytes_per_sample, "bytes")
