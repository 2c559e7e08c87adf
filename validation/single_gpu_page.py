"""The page on training steps of one GPU: tables of errors, and what explains them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from planner.domain.arrays import FloatArray
from planner.sources.overheads import EXPONENTS
from validation.single_gpu_rows import EXPONENT_GRID, TARGETED, Group, Steps, family_of
from validation.tables import markdown_table

__all__ = ["ALONE_TARGET", "BIAS_TARGET", "TWO_TARGET", "Summary", "page_of", "summary_of"]

ALONE_TARGET, TWO_TARGET, BIAS_TARGET = 0.15, 0.06, 0.03
MEASURED = "measured"
TITLE = """# Training steps of one GPU

Synchronous steps on one GPU with synthetic input, as published by the sources named below
(`validation/SOURCES.toml`), against what the bundled kernel calibrations say. Written by
`python -m validation.single_gpu`; `--check` compares.

- *Kernels alone*: the sum of the kernels, without any coefficient fitted to steps; beside it with 10 us of host time a
  call, which `planner` assumes for a framework that was not measured. The 10 us are a stated assumption, not a fit.
  Specified kernels hold their launch already: for them both are the same.
- *Two coefficients*: a factor on all kernels and the host time of a call, drawn weakly towards 1 and 10 us, fitted to
  the other networks of the same source, framework, library version and GPU. *Network out*: without the network that is
  predicted; *family out*: without its whole family (ResNet-18 and -34; deeper ResNets; VGGs; decoders).
- *All coefficients*: what `planner` fits from all rows of this page together, without the network that is predicted.

Error is |predicted / measured - 1|, bias the mean without the bars. Kernels are *measured* where the GPU has a
calibration with timed convolutions or products in that precision; targets speak of those, and were set for all sources
but `pytorch-gpu-benchmark`, which came in later.
"""
CAUSES = """## What the misses come from

On GPUs with measured kernels, the dearest first:

- **Library versions.** The kernels of Titan X (Maxwell), Titan X (Pascal) and GTX 1080 Ti were timed with a cuDNN that
  the tables do not name. Between cuDNN 4 and 5.1 steps of one GPU differ by 1.1 (ResNet-50) to 1.75 times (VGG-16): no
  single factor serves both families. `planner` keeps coefficients by version where runs show several.
- **Kernel shapes outside the tables.** Inception v3 is too fast at every large sub-batch, on V100 and P100, in MXNet
  and in TensorFlow, while ResNet-50 is not. Convolutions of 1 x 7 and 7 x 1 take a sixth of its kernel time, and no
  table times them. They have a rate apart from that of 5 x 5 convolutions, which Winograd and FFT speed up: that of
  oblong and strided ones in DeepBench, 0.2 to 0.85 of the peak (with one rate for both, Inception was 3 to 7 points
  further off).
- **First layers in Torch7.** On GTX 1080 Ti ResNet-18 and -34 miss by about the same milliseconds, so do VGG-16 and
  -19, ResNet-50 and -101: what is missing is in the layers that they share, not in those that the deeper one repeats.
  Convolutions are not it, which agree with their tables within 4 % where these hold them; the gradient of the image,
  which Torch7 computes, is counted. Batch normalisation and pooling of large maps, of which these GPUs have no measured
  times, may be it.
- **More than passes.** On Titan Xp the steps of pytorch-gpu-benchmark are 10 to 18 ms longer than their kernels alone,
  of shallow networks as of deep ones: of ResNet-18 a third, of ResNet-152 a tenth. What that benchmark times besides
  (copies of images, gradients set to zero and added up) is not known here.
- **AlexNet.** The coefficients of networks with more calls and fewer large products make it too slow, where its kernels
  alone are right: what makes up for others' errors adds one to it.

On others:

- **Specified kernels** have one efficiency for all convolutions: VGG is too slow, Inception and ResNet-50 too fast. The
  host time of a call then makes up for it, and says nothing of the host; so it is pooled apart.
- **Depthwise convolutions** (MobileNet v2) are priced as others are.

Nothing is missing of an update or a loss: cnn-benchmarks and NeuSight time forward and backward alone, and their rows
say so (optimizer none). Small sub-batches are bound by the host, additively: see the exponent.
"""


class Summary(NamedTuple):
    """Errors of n rows: mean, median, 90 % and worst of their sizes, and the bias; 0 of none."""

    rows: int
    mean: float
    median: float
    p90: float
    worst: float
    bias: float


def summary_of(errors: Iterable[FloatArray]) -> Summary:
    """Return the summary of errors, arrays of shape (n,)."""
    found = np.concatenate([np.zeros(0), *errors])
    if not found.size:
        return Summary(0, 0.0, 0.0, 0.0, 0.0, 0.0)
    sizes = np.abs(found)
    low, high = np.quantile(sizes, [0.5, 0.9]).tolist()
    return Summary(found.size, float(sizes.mean()), low, high, float(sizes.max()), float(found.mean()))


class _Figures(NamedTuple):
    """Errors of the steps of one group, in their order."""

    group: Group
    alone: list[FloatArray]
    assumed: list[FloatArray]
    network_out: list[FloatArray]
    family_out: list[FloatArray]
    whole: list[FloatArray]


def page_of(groups: Sequence[Group], whole: Mapping[Steps, FloatArray]) -> str:
    """Return the page.

    Parameters
    ----------
    groups : sequence of Group
    whole : mapping of Steps to their errors with all coefficients, shape (n,)
    """
    figures = [_figures_of(group, whole) for group in groups]
    measured = [one for one in figures if one.group.of.kernels == MEASURED]
    others = [one for one in figures if one.group.of.kernels != MEASURED]
    parts = [
        TITLE,
        "## Targets\n",
        markdown_table(("quantity", "rows", "mean", "target", "met", "all sources"), _targets(measured)),
        "## Kernels alone\n",
        _alone_table(measured),
        "GPUs whose kernels are not measured:\n",
        _alone_table(others),
        "## Coefficients fitted to other networks\n",
        _fitted_table(measured),
        "GPUs whose kernels are not measured:\n",
        _fitted_table(others),
        "## Exponent\n",
        _exponents(figures),
        "## By network\n",
        "Mean signed error over the sub-batches of a network.\n",
        markdown_table(_NETWORK_HEAD, (row for one in figures for row in _networks(one))),
        CAUSES,
    ]
    return "\n".join(parts)


def _figures_of(group: Group, whole: Mapping[Steps, FloatArray]) -> _Figures:
    return _Figures(
        group,
        [one.alone for one in group.steps],
        [one.assumed for one in group.steps],
        group.held_out(lambda one: one.name),
        group.held_out(family_of),
        [whole[one] for one in group.steps],
    )


def _targets(figures: Sequence[_Figures]) -> Iterator[list[str]]:
    """Yield every figure that has a target, over rows with measured kernels, and the bias of every GPU."""
    columns = (
        ("kernels alone", "alone", ALONE_TARGET),
        ("kernels and 10 us a call", "assumed", ALONE_TARGET),
        ("two coefficients, network out", "network_out", TWO_TARGET),
        ("two coefficients, family out", "family_out", TWO_TARGET),
        ("all coefficients, network out", "whole", TWO_TARGET),
    )
    for name, column, target in columns:
        every = summary_of(errors for one in figures for errors in getattr(one, column))
        found = summary_of(
            errors for one in figures if one.group.of.source in TARGETED for errors in getattr(one, column)
        )
        cells = [_percent(found.mean), f"at most {_percent(target)}", _met(found.mean, target)]
        yield [name, str(found.rows), *cells, f"{_percent(every.mean)} of {every.rows}"]
    by_gpu: dict[str, list[FloatArray]] = {}
    for one in figures:
        by_gpu.setdefault(one.group.of.gpu, []).extend(one.network_out)
    for gpu, errors in sorted(by_gpu.items()):
        found = summary_of(errors)
        name = f"bias of {gpu}, two coefficients"
        cells = [_signed(found.bias), f"at most {_percent(BIAS_TARGET)}", _met(found.bias, BIAS_TARGET)]
        yield [name, str(found.rows), *cells, ""]


def _alone_table(figures: Sequence[_Figures]) -> str:
    head = ["source", "framework", "GPU", "networks", "rows"]
    head += ["mean", "median", "90 %", "worst", "bias", "with 10 us: mean", "median", "90 %", "worst", "bias", "met"]
    rows = []
    for one in figures:
        alone, assumed = summary_of(one.alone), summary_of(one.assumed)
        target = [_met(assumed.mean, ALONE_TARGET)] if one.group.of.kernels == MEASURED else [""]
        rows.append([*_names(one), str(alone.rows), *_five(alone), *_five(assumed), *target])
    return markdown_table(head, rows)


def _fitted_table(figures: Sequence[_Figures]) -> str:
    head = ["source", "framework", "GPU", "networks", "factor", "us a call", "network out: mean", "median", "90 %"]
    head += ["worst", "bias", "met", "bias met", "family out: mean", "bias", "all coefficients: mean", "worst", "bias"]
    rows = []
    for one in figures:
        network, family, whole = (summary_of(errors) for errors in (one.network_out, one.family_out, one.whole))
        two = one.group.fitted()
        is_measured = one.group.of.kernels == MEASURED
        met = [_met(network.mean, TWO_TARGET), _met(network.bias, BIAS_TARGET)] if is_measured else ["", ""]
        rows.append(
            [
                *_names(one), f"{two.kernel_scale:.2f}", f"{two.host_s_per_call * 1e6:.0f}", *_five(network), *met,
                _percent(family.mean), _signed(family.bias),
                _percent(whole.mean), _percent(whole.worst), _signed(whole.bias),
            ]
        )  # fmt: skip
    return markdown_table(head, rows)


def _exponents(figures: Sequence[_Figures]) -> str:
    """Return the errors under several exponents of the composition of host and GPU time, by network left out."""
    text = (
        "A stage takes ((k · kernels)^p + (h · calls)^p)^(1/p). Mean error of two coefficients, network out, under\n"
        "several p, where a network was timed at several sub-batches. `planner` fits p where kernels are measured and\n"
        "sub-batches of a network span a factor of 8; where they do not tell it, it takes "
        f"{EXPONENTS['exponent']:g},\nand {EXPONENTS['exponent_attention']:g} for networks with attention.\n"
    )
    rows = []
    for one in figures:
        group = one.group
        if any(np.unique(each.observed.configurations.sub_batch).size > 1 for each in group.steps):
            means = [summary_of(group.held_out(lambda each: each.name, p)).mean for p in EXPONENT_GRID]
            sub_batches = np.concatenate([each.observed.configurations.sub_batch for each in group.steps])
            span = f"{sub_batches.min()} to {sub_batches.max()}"
            rows.append([*_names(one)[:3], group.of.kernels, span, *(_percent(mean) for mean in means)])
    head = ("source", "framework", "GPU", "kernels", "sub-batches", *(f"p = {p:g}" for p in EXPONENT_GRID))
    return f"{text}\n{markdown_table(head, rows)}"


_NETWORK_HEAD = (
    "source", "framework", "GPU", "network", "sub-batches",
    "alone", "with 10 us", "two coefficients", "all coefficients",
)  # fmt: skip


def _networks(figures: _Figures) -> Iterator[list[str]]:
    columns = (figures.alone, figures.assumed, figures.network_out, figures.whole)
    for at, one in enumerate(figures.group.steps):
        batches = ", ".join(str(each) for each in sorted(set(one.observed.configurations.sub_batch.tolist())))
        cells = [_signed(summary_of([column[at]]).bias) for column in columns]
        yield [one.source, one.framework, one.gpu, one.network.replace("|", "\\|"), batches, *cells]


def _names(figures: _Figures) -> list[str]:
    one, networks = figures.group.of, {each.network for each in figures.group.steps}
    return [one.source, one.framework, one.gpu, str(len(networks))]


def _five(found: Summary) -> list[str]:
    return [*(_percent(value) for value in (found.mean, found.median, found.p90, found.worst)), _signed(found.bias)]


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _signed(value: float) -> str:
    return f"{100 * value:+.1f} %"


def _met(value: float, target: float) -> str:
    return "yes" if abs(value) <= target else "no"
