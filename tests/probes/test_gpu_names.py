import pytest

from planner.catalog import find_accelerator, names
from planner.probes.machine import DRIVER_NAMES, MEMORY_GIB, gpu_name


@pytest.mark.parametrize(
    ("said", "memory_mib", "name"),
    [
        ("NVIDIA H200", 143771, "h200-sxm-141gb"),
        ("NVIDIA H100 80GB HBM3", 81559, "h100-sxm5-80gb"),
        ("NVIDIA H100 PCIe", 81559, "h100-pcie-80gb"),
        ("Tesla V100-SXM2-16GB", 16160, "v100-sxm2-16gb"),
        ("Tesla V100-SXM2-32GB", 32510, "v100-sxm2-32gb"),
        ("NVIDIA A100-SXM4-80GB", 81251, "a100-sxm4-80gb"),
        ("A100-SXM4-40GB", 40536, "a100-sxm4-40gb"),
        ("NVIDIA A100 80GB PCIe", 81920, "a100-pcie-80gb"),
        ("NVIDIA A40", 46068, "a40"),
        ("NVIDIA L4", 23034, "l4"),
        ("Tesla T4", 15109, "t4"),
        ("Tesla P40", 22919, "p40"),
        ("Tesla K80", 11441, "k80"),
        ("GeForce GTX 1080 Ti", 11178, "gtx-1080ti"),
        ("NVIDIA TITAN X (Pascal)", 12194, "titan-x-pascal"),
        ("GeForce GTX TITAN X", 12212, "titan-x-maxwell"),
        ("NVIDIA GeForce RTX 4090", 24564, "rtx-4090"),
        ("NVIDIA RTX 6000 Ada Generation", 49140, "rtx-6000-ada"),
        ("NVIDIA GH200 480GB", 97871, "gh200-96gb"),
        ("NVIDIA GeForce RTX 5090", 32607, "rtx-5090"),
        ("NVIDIA GB200", 189471, "gb200"),
        ("AMD Instinct MI300X VF", 196592, "mi300x"),
    ],
)
def test_what_drivers_say_is_matched_to_bundled_names(said: str, memory_mib: int, name: str) -> None:
    assert gpu_name(said, memory_mib * 2.0**20) == name


@pytest.mark.parametrize(
    ("said", "memory_mib", "name"),
    [
        ("NVIDIA GeForce RTX 5070", 12227, "geforce-rtx-5070"),
        ("NVIDIA H200 NVL", 143771, "h200-nvl"),
        ("NVIDIA H100 NVL", 95830, "h100-nvl"),
        ("Tesla M40", 22945, "tesla-m40"),
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", 19968, "a100-sxm4-40gb-mig-3g-20gb"),
        ("", 1000, "unknown-gpu"),
    ],
)
def test_other_devices_and_parts_of_devices_keep_a_name_of_their_own(said: str, memory_mib: int, name: str) -> None:
    assert gpu_name(said, memory_mib * 2.0**20) == name


def test_names_and_memories_are_those_of_the_bundled_accelerators() -> None:
    nvidia = [name for name in names("accelerators") if find_accelerator(name).vendor == "NVIDIA"]
    assert {*nvidia} <= {*MEMORY_GIB} <= {*names("accelerators")}
    assert DRIVER_NAMES.keys() <= MEMORY_GIB.keys()
    for name, size_gib in MEMORY_GIB.items():
        assert find_accelerator(name).memory_bytes == pytest.approx(size_gib * 2.0**30)
