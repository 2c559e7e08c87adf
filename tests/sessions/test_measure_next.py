"""What to measure next: what can be timed, and the command."""

from dataclasses import replace

from planner import catalog
from planner.domain.samples import NETWORKS
from planner.fitting.next_points import CanMeasure, gaps_of
from planner.sessions.measure import can_be_measured, measured_for, measuring
from planner.workload.calls import distinct_calls


def test_a_cpu_is_measured_again_in_its_precisions_what_fits_beside_them() -> None:
    """The products of GPT-2's logits, 552 MiB, are timed in fp32 alone, not with 16 bits, which take of the memory."""
    whole = catalog.find_calibration("cpu-epyc-example")
    unsure = [replace(e, held_out_error=9.0) for e in whole.entries if e.kind == "gemm" and e.coefficients]
    layers = [call for call in distinct_calls([catalog.find_network("gpt2")]) if call.layer.name == "logits"]
    (forward,) = [call for call in layers if (call.kind, call.direction) == ("gemm", "forward")]
    for precisions, fits in ((("fp32",), True), (("fp32", "bf16"), False)):
        entries = tuple(replace(e, precision=name) for e in unsure for name in precisions)
        own = replace(whole, entries=entries, name="own", environment={**whole.environment, NETWORKS: "gpt2"})
        can = can_be_measured(own)
        assert [can(forward, "fp32"), can(forward, "bf16")] == [fits, False]
        command = measuring(gaps_of(own, measured_for(own), can), own)
        assert (" --device cpu --precision bf16 --network gpt2" in command) == (not fits)


def test_only_what_can_be_measured_is_to_be_measured_next() -> None:
    """The update of VGG-16's largest layer takes more memory than a call may have, and is alone outside the fit."""
    whole = catalog.find_calibration("cpu-epyc-example")
    unsure = tuple(replace(e, held_out_error=0.9 if e.kind == "update" else 0.01) for e in whole.entries)
    own = replace(whole, entries=unsure, name="own", environment={**whole.environment, NETWORKS: "vgg16"})

    def reasons(can: CanMeasure) -> list[str]:
        return [gap.reason for gap in gaps_of(own, measured_for(own), can) if gap.kind == "update"]

    assert reasons(can_be_measured(own)) == ["poor"]
    assert reasons(lambda _call, _precision: True) == ["outside", "poor"]
