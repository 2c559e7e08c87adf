"""Which published tables serve the calibration of each GPU, and what has to be said of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

__all__ = ["BOARDS", "Board"]


@dataclass(frozen=True, slots=True)
class Board:
    """The sources of one calibration.

    Attributes
    ----------
    name : str
        Of the accelerator and of the calibration.
    devices, environment, date : str
        Circumstances: on what, with which libraries, when.
    deepbench : str
        Name of the GPU in DeepBench's sheets; empty: no convolutions, and no products from there.
    siblings : tuple of str
        GPUs of DeepBench by whose times stale rows of convolutions and of products are told; empty: none is near.
    linear, batched, rows : str
        Name of the GPU in NeuSight's tables of linear layers, of batched products, and of element-wise and row-wise
        kernels.
    vidur : str
        Name of the GPU in vidur's table.
    attention : str
        Name of the GPU in the table of fused attention.
    operators : str
        Name of the GPU in the table of transformer operators.
    operator_kinds : tuple of str
        Kinds of kernels that are taken from there; empty: all.
    libraries, int8_libraries : tuple of str
        Of convolutions and of products, which may be pooled; of those in int8, where they were measured.
    notes : tuple of (table, str)
        Of every row of a table: ``deepbench``, ``linear``, ``batched``, ``rows``, ``vidur``, ``attention``,
        ``operators``.
    warning : str
        For whoever uses the calibration.
    """

    name: str
    devices: str
    environment: str
    date: str
    deepbench: str = ""
    siblings: tuple[str, str] = ("", "")
    linear: str = ""
    batched: str = ""
    rows: str = ""
    vidur: str = ""
    attention: str = ""
    operators: str = ""
    operator_kinds: tuple[str, ...] = ()
    libraries: tuple[str, str] = ("", "pytorch 2.1")
    int8_libraries: tuple[str, str] = ("", "")
    notes: tuple[tuple[str, str], ...] = ()
    warning: str = ""

    def note(self, table: str) -> str:
        """Return what is said of every row of a table."""
        return dict(self.notes).get(table, "")


CONSTANT = (
    "on tensors of 100 MB and more, one call between two events: the constant holds host time, as it is 10 to 21 us on "
    "seven GPUs of very different speed; it is kept for small tensors"
)
SINGLE = "one call between two events"
FLASH = (
    "rates read off the bars of a figure; samples and heads by the protocol of the papers: 16384 tokens, 2048 "
    "features; forward in fp16, which serves bf16 too"
)
H100_FLASH = f"{FLASH}; backward is forward and backward together less forward, of two figures"
A100_FLASH = f"{FLASH}; forward and backward were timed together, and are split as on an H100, shape by shape"
T4_WARNING = (
    "FP16 training is predicted too fast from kernels alone: "
    "ResNet-50 in mixed precision (apex) took 1.7 to 2.1 times what is predicted "
    "at sub-batches 200 and 20 on one T4 of an EC2 g4dn; convolutions were timed alone, without layout changes and "
    "casts."
)
"""Published: traces of Pollux (Qiao et al., OSDI 2021), github.com/petuum/adaptdl."""
V100_WARNING = (
    "FP16 training is predicted too fast from kernels alone: "
    "ResNet-50 gains 2.1 to 2.6 times over FP32 at sub-batches 16 to 128 where "
    "1.60 to 2.07 times was published, and forward with backward of VGG-16 and ResNet-152 at sub-batch 16 took 2.0 and "
    "1.4 times what is predicted, mostly in the backward pass; convolutions were timed alone, without layout changes "
    "and casts, by a newer cuDNN."
)
"""Published: Dell EMC reference guide on deep learning; u39kun/deep-learning-benchmark (PyTorch 0.3, cuDNN 7.0)."""
V100_KEPT = (
    f"{CONSTANT} because with 8 us (a small product in a loop of calls) 21 published MXNet steps on a V100 are missed "
    "by 19 % instead of 13 %"
)
V100_PCIE, P100_PCIE, T4 = "Tesla V100-PCIE-32GB", "Tesla P100-PCIE-16GB", "Tesla T4"
A100_40, A100_80 = "NVIDIA A100-PCIE-40GB", "NVIDIA A100 80GB PCIe"
A100_ATTENTION, A100_OPERATORS = "A100 80GB SXM4", "a100-sxm4-80gb"
MATRIX_UNITS = ("attention", "gemm")
"""Kinds that another board of the chip stands in for: their speed is that of the chip's matrix units."""
CUDA_10 = "CUDA 10.1, cuDNN 7.6.2 (convolution, products one by one) and PyTorch 2.1 (others)"

V100_SXM2 = Board(
    "v100-sxm2-16gb", "Tesla V100-SXM2 of a DGX-1 (convolution, products one by one) and Tesla V100-PCIe-32GB (others)",
    CUDA_10, "2019", deepbench="Tesla V100", batched=V100_PCIE, rows=V100_PCIE,
    libraries=("cudnn 7.6.2", "cublas 10.1"), warning=V100_WARNING,
    notes=(
        ("rows", f"measured on a V100-PCIe-32GB, which stands in: its bandwidth is that of the SXM2; {V100_KEPT}"),
        ("batched", f"batches measured on a V100-PCIe-32GB, which stands in, unscaled, {SINGLE}"),
    ),
)  # fmt: skip
P100 = Board(
    "p100-pcie-16gb",
    "Tesla P100, taken for PCIe (convolution, products one by one), and Tesla P100-PCIe-16GB (others)",
    "CUDA 8, cuDNN 6 (convolution, products one by one) and PyTorch 2.1 (others)", "2017",
    deepbench="Tesla P100", batched=P100_PCIE, rows=P100_PCIE,
    libraries=("cudnn 6", "cublas 8"),
    notes=(("rows", CONSTANT), ("batched", SINGLE)),
)  # fmt: skip
A100_PCIE = Board(
    "a100-pcie-40gb", "A100-PCIe-40GB, but A100-SXM4-80GB for products in fp16 and bf16 and fused attention",
    "PyTorch 2.1, TF32 off (fp32)", "2023 to 2024",
    linear=A100_40, batched=A100_40, rows=A100_40, vidur="A100-SXM4-80GB", attention=A100_ATTENTION,
    operators=A100_OPERATORS, operator_kinds=MATRIX_UNITS,
    notes=(
        ("rows", CONSTANT), ("linear", SINGLE), ("batched", SINGLE),
        ("vidur", "measured on an A100-SXM4-80GB, which stands in, unscaled"),
        ("operators", "measured on an A100-SXM4-80GB, which stands in, unscaled"),
        ("attention", f"measured on an A100-SXM4-80GB, which stands in, unscaled; {A100_FLASH}"),
    ),
)  # fmt: skip
A100_SXM = Board(
    "a100-sxm4-80gb",
    "A100-SXM4-80GB for products in fp16 and bf16 and fused attention, A100-PCIe-80GB for the others",
    "PyTorch 2.1, TF32 off (fp32)", "2023 to 2024",
    linear=A100_80, batched=A100_80, rows=A100_80, vidur="A100-SXM4-80GB", attention=A100_ATTENTION,
    operators=A100_OPERATORS,
    notes=(
        ("rows", f"measured on an A100-PCIe-80GB, which stands in, unscaled, at 95 % of the bandwidth; {CONSTANT}"),
        ("linear", f"measured on an A100-PCIe-80GB, which stands in, unscaled, {SINGLE}"),
        ("batched", f"batches measured on an A100-PCIe-80GB, which stands in, unscaled, {SINGLE}"),
        ("attention", A100_FLASH),
    ),
)  # fmt: skip
PASCAL = Board(
    "gtx-1080ti", "GTX 1080 Ti", "cuDNN and cuBLAS of unstated versions", "", deepbench="GTX 1080 Ti",
    libraries=("cudnn", "cublas"),
)  # fmt: skip
PASCAL_INT8 = ("cudnn 6", "cublas 8")
MI = Board(
    "mi25", "Radeon Instinct MI25", "MIOpen and rocBLAS of unstated versions", "", deepbench="AMD MI25",
    libraries=("miopen", "rocblas"),
)  # fmt: skip
BOARDS = (
    V100_SXM2,
    replace(
        V100_SXM2, name="v100-sxm2-32gb",
        notes=(
            ("deepbench", "measured on a V100-SXM2-16GB, which stands in: the same die, clock and bandwidth"),
            *V100_SXM2.notes,
        ),
    ),
    replace(
        V100_SXM2, name="v100-sxm3-32gb",
        notes=(("deepbench", "measured on a V100-SXM2 of a DGX-1, which stands in, unscaled"), *V100_SXM2.notes),
    ),
    replace(
        V100_SXM2, name="v100-pcie-16gb",
        devices="Tesla V100-SXM2 of a DGX-1 (convolution, products in fp16) and Tesla V100-PCIe-32GB (others)",
        notes=(
            ("deepbench", "measured on a V100-SXM2 of a DGX-1, which stands in, unscaled"),
            ("rows", f"measured on a V100-PCIe-32GB, which stands in: the same die, clock and bandwidth; {V100_KEPT}"),
            ("batched", f"measured on a V100-PCIe-32GB, which stands in: the same die and clock, {SINGLE}"),
        ),
    ),
    replace(
        V100_SXM2, name="v100-pcie-32gb",
        devices="Tesla V100-SXM2 of a DGX-1 (convolution, products in fp16) and Tesla V100-PCIe-32GB (others)",
        notes=(
            ("deepbench", "measured on a V100-SXM2 of a DGX-1, which stands in, unscaled"),
            ("rows", V100_KEPT), ("batched", SINGLE),
        ),
    ),
    P100,
    replace(
        P100, name="p100-sxm2-16gb",
        notes=(
            ("deepbench", "measured on a P100 that is taken for a PCIe board, which stands in, unscaled"),
            ("rows", f"measured on a P100-PCIe-16GB, which stands in: its bandwidth is that of the SXM2; {CONSTANT}"),
            ("batched", f"measured on a P100-PCIe-16GB, which stands in, unscaled, {SINGLE}"),
        ),
    ),
    Board(
        "t4", "Tesla T4",
        "CUDA 10, cuDNN 7 by their date (convolution, products one by one) and PyTorch 2.1 (others)", "2019",
        deepbench=T4, batched=T4, rows=T4, libraries=("cudnn 7", "cublas 10"), warning=T4_WARNING,
        int8_libraries=("cudnn 7.6.2", "cublas 10.1"),
        notes=(("rows", CONSTANT), ("batched", SINGLE)),
    ),
    Board(
        "p4", "Tesla P4", "PyTorch 2.1", "2023 to 2024", linear="Tesla P4", batched="Tesla P4", rows="Tesla P4",
        notes=(("rows", CONSTANT), ("linear", SINGLE), ("batched", SINGLE)),
    ),
    replace(PASCAL, int8_libraries=PASCAL_INT8),
    replace(
        PASCAL, name="titan-x-pascal", devices="Titan X (Pascal)", deepbench="Titan X (Pascal)",
        siblings=("GTX 1080 Ti", "GTX 1080 Ti"), int8_libraries=PASCAL_INT8,
    ),
    replace(
        PASCAL, name="titan-xp", devices="Titan Xp", deepbench="Titan Xp", siblings=("GTX 1080 Ti", "GTX 1080 Ti"),
        int8_libraries=PASCAL_INT8,
    ),
    replace(
        PASCAL, name="titan-x-maxwell", devices="GTX Titan X (Maxwell)", deepbench="GTX Titan X (Maxwell)",
        siblings=("GTX 1080 Ti", ""),
    ),
    replace(PASCAL, name="m40", devices="Tesla M40", deepbench="Tesla M40", siblings=("GTX 1080 Ti", "")),
    A100_PCIE,
    replace(
        A100_PCIE, name="a100-pcie-80gb",
        devices="A100-PCIe-80GB, but A100-SXM4-80GB for products in fp16 and bf16 and fused attention",
        linear=A100_80, batched=A100_80, rows=A100_80,
    ),
    A100_SXM,
    replace(
        A100_SXM, name="a100-sxm4-40gb",
        devices="A100-SXM4-80GB for products in fp16 and bf16 and fused attention, A100-PCIe-40GB for the others",
        linear=A100_40, batched=A100_40, rows=A100_40, operator_kinds=MATRIX_UNITS,
        notes=(
            ("rows", f"measured on an A100-PCIe-40GB, which stands in: its bandwidth is that of the SXM4; {CONSTANT}"),
            ("linear", f"measured on an A100-PCIe-40GB, which stands in, unscaled, {SINGLE}"),
            ("batched", f"measured on an A100-PCIe-40GB, which stands in, unscaled, {SINGLE}"),
            ("vidur", "measured on an A100-SXM4-80GB, which stands in, unscaled, at 131 % of the bandwidth"),
            ("operators", "measured on an A100-SXM4-80GB, which stands in, unscaled, at 131 % of the bandwidth"),
            (
                "attention",
                f"measured on an A100-SXM4-80GB, which stands in, unscaled, at 131 % of the bandwidth; {A100_FLASH}",
            ),
        ),
    ),
    Board("a40", "A40", "of unstated versions", "2023 to 2024", vidur="A40", libraries=("", "vidur")),
    Board(
        "l4", "L4", "PyTorch 2.1, TF32 off", "2023 to 2024", linear="NVIDIA L4", batched="NVIDIA L4", rows="NVIDIA L4",
        notes=(("rows", CONSTANT), ("linear", SINGLE), ("batched", SINGLE)),
    ),
    Board(
        "h100-sxm5-80gb", "H100-SXM5-80GB", "PyTorch 2.1, TF32 off (fp32)", "2023 to 2024",
        linear="NVIDIA H100 80GB HBM3", batched="NVIDIA H100 80GB HBM3", vidur="H100-SXM-80GB",
        attention="H100 80GB SXM5", notes=(("linear", SINGLE), ("batched", SINGLE), ("attention", H100_FLASH)),
    ),
    Board(
        "gh200-96gb", "GH200-96GB", "PyTorch 2, flash-attention 2.5.6 or later", "2024 to 2025", operators="gh200-96gb",
        libraries=("", "pytorch 2"),
    ),
    MI,
    replace(MI, name="vega-fe", devices="Radeon Vega Frontier Edition", deepbench="AMD Vega FE"),
)  # fmt: skip
"""H100-PCIe and MI250X have no kernel times in these tables."""
