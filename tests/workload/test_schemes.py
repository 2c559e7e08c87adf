"""Schemes of layers: what ranks compute, move and sum."""

from math import prod
from types import SimpleNamespace

import numpy as np
import pytest

from planner import catalog
from planner.domain.split import SCHEMES
from planner.workload.program import program
from planner.workload.schemes import (
    CHANNELS,
    FILTERS,
    INPUTS,
    ROUNDS,
    SAMPLES,
    SPACE,
    WHOLE,
    edges_of,
    halo_elements,
    kept_parts,
    lawful_schemes,
    moved,
    named,
    operations,
    part_of,
    scheme_program,
    sent_bytes,
    units_by_layer,
)

NETWORKS = (
    "alexnet",
    "vgg16",
    "resnet50",
    "googlenet",
    "inception-v3",
    "mobilenet-v2",
    "yolov3",
    "mlp",
    "unet",
    "mobilenet-v3",
    "convnext-t",
)


def of_network(name: str):  # type: ignore[no-untyped-def] # noqa: ANN201
    return program(catalog.find_network(name), merged=False)


def fully_connected_by_filters(of) -> tuple[int, ...]:  # type: ignore[no-untyped-def] # noqa: ANN001
    """Return the scheme of each layer: convolutions by samples, fully connected layers by filters."""
    is_behind, schemes = False, []
    for layer in of.network.layers:
        is_behind |= layer.kind == "linear"
        last = layer.kind == "loss"
        schemes.append(FILTERS if layer.kind == "linear" else CHANNELS if is_behind and not last else SAMPLES)
    return tuple(schemes)


@pytest.mark.parametrize(
    ("network", "batch", "data_mb", "convolutions_mb", "connected_mb"),
    [("vgg16", 256, 968.5, 103.1, 59.6), ("vgg16", 1024, 968.5, 103.1, 238.4)],
)
def test_bytes_of_one_weird_trick(
    network: str, batch: int, data_mb: float, convolutions_mb: float, connected_mb: float
) -> None:
    """Eight GPUs, fp32, around rings: data parallel, and fully connected layers by filters."""
    of, ranks = of_network(network), 8
    edges, samples = edges_of(of), (SAMPLES,) * len(of.network.layers)
    data = SimpleNamespace(program=of, schemes=samples, group=1)
    assert sent_bytes(data, edges, (batch // 8, 8), (4, 4)) == pytest.approx(data_mb * 1e6, rel=2e-3)
    schemes = fully_connected_by_filters(of)
    hybrid = SimpleNamespace(program=scheme_program(of, schemes, ranks), schemes=schemes, group=ranks)
    sent = sent_bytes(hybrid, edges, (batch, 1), (4, 4))
    assert sent == pytest.approx((convolutions_mb + connected_mb) * 1e6, rel=5e-3)


def test_a_layer_moves_fewer_bytes_by_filters_where_the_batch_is_below_its_outputs() -> None:
    """fc6 of AlexNet has 4096: 2 f n X e against 2 f P e."""
    of = of_network("alexnet")
    (at,) = [place for place, layer in enumerate(of.network.layers) if layer.name == "fc6"]
    site = of.sites[at]
    for batch in (2048, 4095, 4097, 16384):
        gathered = 2 * batch * prod(site.inputs[0])
        assert (gathered < 2 * (site.parameters - site.output[0])) == (batch < 4096)


def test_backward_is_the_transpose_of_forward() -> None:
    """Gather and reduce-scatter, all-to-all and itself; what is equal on all ranks is sliced for nothing."""
    transposed = {"all_gather": ("reduce_scatter", ""), "reduce_scatter": ("all_gather",),
                  "all_to_all": ("all_to_all",), "all_reduce": ("", "all_reduce"),
                  "": ("", "all_gather", "all_reduce")}  # fmt: skip
    for made in range(len(SCHEMES)):
        for read in range(len(SCHEMES)):
            forward, backward = moved(made, read)
            assert backward in transposed[forward], (SCHEMES[made], SCHEMES[read])
    assert moved(FILTERS, INPUTS) == ("", "")
    assert operations(0).sum() < len(SCHEMES) ** 2


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_parts_add_up_to_layers(network: str, ranks: int) -> None:
    """Of every layer and scheme: multiply-adds and elements of all parts are no fewer, and few more, than the whole."""
    of = of_network(network)
    for site in of.sites:
        lawful = lawful_schemes(site, ranks)
        assert {SAMPLES, WHOLE} <= set(lawful)
        for scheme in lawful:
            part = part_of(site, scheme, ranks)
            assert part is not None
            if scheme in (SAMPLES, WHOLE):
                assert part == site
                continue
            assert ranks * part.forward_mac >= site.forward_mac
            made = ranks if scheme != INPUTS else 1
            assert scheme != ROUNDS or part == part_of(site, FILTERS, ranks)
            assert made * part.output_elements >= site.output_elements
            if scheme in (FILTERS, INPUTS, CHANNELS, ROUNDS):
                assert ranks * part.parameters >= site.parameters
            else:
                assert part.parameters == site.parameters
            assert part.output_elements <= site.output_elements
        assert (halo_elements(site)[0] > 0) <= (len(site.inputs[0]) == 3)
    assert part_of(of.sites[-1], SPACE, ranks) is None


def test_parts_that_divide_are_exact() -> None:
    of = of_network("vgg16")
    for site, layer in zip(of.sites, of.network.layers, strict=True):
        sides = {INPUTS: site.inputs[0][0], SPACE: site.output[1] if len(site.output) == 3 else 1}
        for scheme in set(lawful_schemes(site, 2)) - {SAMPLES, WHOLE}:
            if sides.get(scheme, 0) % 2:
                continue
            part = part_of(site, scheme, 2)
            assert part is not None
            assert 2 * part.forward_mac == site.forward_mac, (layer.name, SCHEMES[scheme])


def test_a_halo_wider_than_its_part_is_no_scheme() -> None:
    """Rows of 7 x 7 images on 4 ranks have two rows each; a kernel of 7 rows needs three of each neighbour."""
    of = of_network("resnet50")
    wide = [site for site in of.sites if site.layer.kind == "convolution" and site.layer.pair("kernel") == (7, 7)]
    assert wide
    for site in wide:
        assert (SPACE in lawful_schemes(site, 8)) == (-(-site.inputs[0][1] // 8) >= 3)
        assert SPACE not in lawful_schemes(site, 112)


@pytest.mark.parametrize("network", ["vgg16", "resnet50"])
def test_what_a_rank_keeps(network: str) -> None:
    of = of_network(network)
    edges, samples = edges_of(of), (SAMPLES,) * len(of.sites)
    part, besides, of_input = kept_parts(of, edges, samples, 4)
    assert (part == 0.25).all()
    assert not besides.any()
    assert of_input == 0.25
    units = units_by_layer(of)
    assert units.segments.sum() == of.slot.size + 1
    assert units.parameters.sum() == of.parameters
    assert {scheme for _, scheme in named(samples, of)} == {"samples"}
    assert np.unique([name for name, _ in named(samples, of)]).size == of.slot.size
