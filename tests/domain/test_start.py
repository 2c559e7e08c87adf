"""What a program must be told to start a plan."""

from __future__ import annotations

from planner.domain.configuration import Configuration, Settings
from planner.domain.suggestion import start_comment

ORDER = ("data", "tensor", "context", "expert", "pipeline")


def test_the_order_of_ranks_that_is_chosen_for_a_plan_is_said() -> None:
    one, best = Configuration(1, 8, 4), Settings(rank_order=("best",))
    assert start_comment(one, best) == "sub-batch 4, fp32"
    assert start_comment(one, best, ORDER) == "sub-batch 4, fp32, ranks data,tensor,context,expert,pipeline"
    assert start_comment(one, Settings(rank_order=ORDER)) == start_comment(one, best, ORDER)


def test_a_size_of_buckets_is_said() -> None:
    one, sized = Configuration(1, 8, 4), Settings(strategy="bucketed", bucket_bytes=7.5 * 2**20)
    assert start_comment(one, sized) == "sub-batch 4, fp32, buckets of 7.5 MiB"
