from collections.abc import Mapping
from typing import Any

from planner.domain.samples import Samples
from planner.probes.calibrate import with_shared_rows

CALLS = (("gemm", "fp32"), ("gemm", "bf16"), ("activation", "fp32"), ("activation", "bf16"), ("update", "fp32"))


def samples(call: str = "a layer's") -> Samples:
    rows: list[Mapping[str, Any]] = [
        {"kind": kind, "direction": "forward", "precision": precision, "call": call, "time_s": 1.0 + at}
        for at, (kind, precision) in enumerate(CALLS)
    ]
    return Samples.from_rows(rows, {"gpu": "one"})


def test_calls_that_are_the_same_stand_for_each_precision() -> None:
    whole = with_shared_rows(samples(), ("fp32", "tf32", "bf16", "int8"))
    added = list(zip(*(whole.text[key].tolist()[len(CALLS) :] for key in ("kind", "precision")), strict=True))
    assert added == [("activation", "tf32"), ("update", "tf32"), ("update", "bf16")]
    assert whole.time_s.tolist()[len(CALLS) :] == [3.0, 5.0, 5.0]
    assert whole.circumstances == {"gpu": "one"}


def test_rows_of_the_design_and_fp32_alone_stay_as_they_are() -> None:
    assert with_shared_rows(samples(call=""), ("fp32", "tf32", "bf16")).size == len(CALLS)
    assert with_shared_rows(samples(), ("fp32",)).size == len(CALLS)
