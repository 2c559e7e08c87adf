"""What keeps less on a device, of networks without blocks that fit in no way asked for."""

import json

import pytest

from planner.cli.main import main


@pytest.mark.parametrize(
    ("gpus", "sub_batch", "options"),
    [(1, 512, {"--recompute", "--offload"}), (8, 158, {"--sharding", "--recompute", "--offload"})],
)
def test_what_a_cnn_beyond_the_memory_can_leave_out(
    gpus: int, sub_batch: int, options: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Each with the plan and its epoch; one device has nothing to share."""
    code = main([
        "suggest", "--network", "resnet152", "--cluster", "dgx1-v100", "--nodes", "1", "--target-batch",
        str(gpus * sub_batch), "--precision", "fp16", "--accumulation", "1", "--sub-batch", str(sub_batch),
        "--gpus-per-node", str(gpus), "--json",
    ])  # fmt: skip
    assert code == 4
    ways = json.loads(capsys.readouterr().out)["loosen"]
    told = {one["option"]: one["message"] for one in ways}
    assert [one["value"] for one in ways if one["option"] == "--offload"] == ["activations", "paged-activations"]
    assert {name for name in ("--sharding", "--recompute", "--offload") if name in told} == options
    assert all("in an epoch of" in told[name] for name in options)
