import os
import subprocess
import sys

import pytest

from planner.probes import machine
from planner.probes.machine import describe_cpu, present_accelerators


def test_this_machine_is_described_without_torch() -> None:
    code = (
        "import sys; from planner.probes.machine import describe_cpu; "
        "a, n, c = describe_cpu(); print(a.name, n.gpus, a.kind, 'torch' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert out[0].startswith("cpu-")
    assert out[1:] == ["1", "cpu", "False"]


def test_the_cpu_is_present() -> None:
    accelerator, node, circumstances = describe_cpu()
    assert accelerator.name in present_accelerators()
    assert node.accelerator == accelerator
    assert accelerator.peak_flop_per_s["fp32"] > 1e9
    assert {"host_os", "cpu_model", "cpu_threads", "python"} <= set(circumstances)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("Intel(R) Xeon(R) CPU E5-2690 v4 @ 2.60GHz", "cpu-intel-xeon-e5-2690-v4"),
        ("AMD EPYC 7763 64-Core Processor", "cpu-amd-epyc-7763"),
        ("Apple M2", "cpu-apple-m2"),
    ],
)
def test_names_follow_the_model(monkeypatch: pytest.MonkeyPatch, model: str, name: str) -> None:
    monkeypatch.setattr(machine, "_read", lambda path: f"model name\t: {model}\n" if "cpuinfo" in path else "")
    assert describe_cpu()[0].name == name


def test_gpus_of_this_machine_are_present_by_their_bundled_names(monkeypatch: pytest.MonkeyPatch) -> None:
    found = (("NVIDIA H200", 143771 * 2.0**20), ("NVIDIA H200", 143771 * 2.0**20), ("Tesla T4", 15109 * 2.0**20))
    monkeypatch.setattr(machine, "installed_gpus", lambda: found)
    assert present_accelerators()[:3] == ("h200-sxm-141gb", "t4", describe_cpu()[0].name)
    assert present_accelerators()[3:] == tuple(describe_cpu(n)[0].name for n in range(2, (os.cpu_count() or 1) + 1))
