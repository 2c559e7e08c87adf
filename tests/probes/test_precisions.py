import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from planner.domain.kernels import BACKWARD_DATA, BACKWARD_WEIGHT, FORWARD
from planner.domain.precision import PRECISIONS
from planner.errors import ParameterError, UnknownNameError
from planner.probes.operands import Operands
from planner.probes.precisions import (
    COMPUTING,
    CPU_PRECISIONS,
    autocast,
    byte_precisions,
    computes,
    computing_in,
    gpu_precisions,
    wanted_precisions,
)


def test_every_precision_is_stored_as_wide_as_it_is_described() -> None:
    """Of 8 bits the weights are; all others store activations of the same width."""
    operands = Operands(elements=1 << 12)
    for name, precision in PRECISIONS.items():
        assert operands.of(name).itemsize == precision.weight_bytes
        assert operands.of(name).warm(3, 5).dtype == getattr(torch, COMPUTING[name].stored)


def test_operands_of_a_precision_share_a_block_and_those_of_another_do_not() -> None:
    operands = Operands(elements=1 << 12)
    assert operands.of("tf32") is operands.of("fp32") is operands
    assert operands.of("bf16").of("bf16") is operands.of("bf16")
    assert operands.of("bf16").of("fp32") is operands
    first, second = operands.of("int8").warm(100), operands.of("int8").warm(100)
    assert second.data_ptr() - first.data_ptr() == 128
    assert 20 < first.float().std() < 50


def test_cold_operands_of_half_the_size_are_twice_as_many() -> None:
    def views(one: Iterator[torch.Tensor]) -> int:
        return len({next(one).data_ptr() for _ in range(40)})

    operands = Operands(elements=1 << 20, cold_bytes=10 * 4000)
    assert views(operands.cold(1000)) == 10
    assert views(operands.of("bf16").cold(1000)) == 20


@pytest.mark.parametrize(
    ("capability", "lacking"),
    [
        ((9, 0), set()),
        ((8, 9), set()),
        ((8, 0), {"fp8"}),
        ((7, 5), {"fp8", "bf16", "tf32"}),
        ((7, 0), {"fp8", "bf16", "tf32", "int8"}),
        ((5, 2), {"fp8", "bf16", "tf32", "int8", "fp16"}),
    ],
)
def test_a_gpu_has_the_arithmetic_of_its_generation(capability: tuple[int, int], lacking: set[str]) -> None:
    assert set(PRECISIONS) - set(gpu_precisions(capability)) == lacking


def test_fp32_is_always_measured_and_first() -> None:
    assert wanted_precisions((), CPU_PRECISIONS, ("fp32",)) == ("fp32",)
    assert wanted_precisions(("int8", "bf16", "fp32"), CPU_PRECISIONS, ("fp32",)) == ("fp32", "int8", "bf16")
    assert wanted_precisions((), ("fp32", "fp16"), ("fp32", "fp16")) == ("fp32", "fp16")


def test_a_precision_that_the_device_has_not_is_refused() -> None:
    with pytest.raises(ParameterError, match=r"^--precision must be .*: fp32, bf16, int8, got 'fp8'"):
        wanted_precisions(("fp8",), CPU_PRECISIONS, ("fp32",))
    with pytest.raises(UnknownNameError):
        wanted_precisions(("bf61",), CPU_PRECISIONS, ("fp32",))


def test_bytes_are_measured_in_one_half_size() -> None:
    assert byte_precisions(("fp32", "tf32", "fp16", "bf16", "int8")) == ("fp32", "bf16")
    assert byte_precisions(("fp32", "fp16")) == ("fp32", "fp16")
    assert byte_precisions(("fp32", "tf32", "int8")) == ("fp32",)


def test_eight_bits_are_for_products() -> None:
    assert computes("int8", "gemm", FORWARD)
    assert computes("int8", "gemm", BACKWARD_DATA)
    assert not computes("int8", "gemm", BACKWARD_WEIGHT)
    assert computes("fp8", "gemm", BACKWARD_WEIGHT)
    assert not computes("fp8", "convolution", FORWARD)
    assert computes("int8", "convolution", FORWARD)
    assert not computes("int8", "convolution", BACKWARD_DATA)
    assert computes("tf32", "convolution", BACKWARD_WEIGHT)
    assert not computes("bf16", "activation", FORWARD)


def switches() -> tuple[object, ...]:
    """Return all that says whether products and convolutions use TF32; PyTorch raises where two contradict."""
    backends: Any = torch.backends
    matmul, cudnn = backends.cuda.matmul, backends.cudnn
    newer = [one.fp32_precision == "tf32" for one in (matmul, cudnn.conv, cudnn.rnn)]
    return (matmul.allow_tf32, torch.get_float32_matmul_precision(), cudnn.allow_tf32, *newer)


@pytest.fixture(params=[(False, True), (True, True), (True, False), (False, False)])
def initial(request: pytest.FixtureRequest) -> Iterator[tuple[bool, bool]]:
    """Set whether products and convolutions use TF32, and return it; by default convolutions do."""
    backends: Any = torch.backends
    before = backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32
    backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32 = request.param
    yield request.param
    backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32 = before


def test_tf32_is_on_for_tf32_alone_and_as_before_afterwards(initial: tuple[bool, bool]) -> None:
    products, convolutions = initial
    on, off = (True, "high", *[True] * 4), (False, "highest", *[False] * 4)
    before = switches()
    with computing_in("fp32"):
        assert switches() == off
        with computing_in("tf32"):
            assert switches() == on
        assert switches() == off
    assert switches() == before == (
        products, "high" if products else "highest", convolutions, products, convolutions, convolutions
    )  # fmt: skip


def test_mixed_precision_is_of_16_bits() -> None:
    one = torch.ones(4, 4)
    for name, expected in {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16}.items():
        with autocast("cpu", name):
            assert (one @ one).dtype == expected


def test_a_warning_of_the_older_switches_is_not_shown_and_others_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """What PyTorch 2.9 says where they are read or set, each time here."""

    class Way:
        said = (
            "Please use the new API settings to control TF32 behavior, such as torch.backends.cudnn.conv.fp32_precision"
        )

        @property
        def allow_tf32(self) -> bool:
            warnings.warn(self.said, UserWarning, stacklevel=2)
            return False

        @allow_tf32.setter
        def allow_tf32(self, _value: bool) -> None:
            warnings.warn(self.said, UserWarning, stacklevel=2)

    backends = SimpleNamespace(cuda=SimpleNamespace(matmul=Way()), cudnn=Way())
    monkeypatch.setattr("planner.probes.precisions.import_torch", lambda: SimpleNamespace(backends=backends))
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        with computing_in("tf32"):
            warnings.warn(Way.said, UserWarning, stacklevel=1)
        assert len(shown) == 1
        Way.said = "The switch is gone"
        with computing_in("tf32"):
            pass
    assert len(shown) == 1 + 6
