from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.domain.layers.record import LAYER_KINDS
from planner.domain.network import Network, layer_shapes
from planner.errors import ParameterError, UnknownNameError
from planner.networks.zoo import arguments_of, build, zoo_names
from planner.workload.calls import layer_work, totals

PUBLISHED: dict[str, Any] = json.loads((Path(__file__).parents[1] / "data/published/networks.json").read_text())


def identity(row: dict[str, Any]) -> str:
    return ":".join((row["network"], *row.get("arguments", {}).values()))


@pytest.mark.parametrize("row", PUBLISHED["networks"], ids=identity)
def test_parameters_and_multiply_adds_are_the_published_ones(row: dict[str, Any]) -> None:
    counted = totals(build(row["network"], row["arguments"]))
    assert abs(counted.parameters - row["parameters"]) <= row["parameters_tolerance"]
    assert abs(counted.forward_mac - row["forward_mac"]) <= row["forward_mac_tolerance"]


def test_every_network_but_the_stand_in_and_the_generic_one_has_a_published_figure() -> None:
    assert {row["network"] for row in PUBLISHED["networks"]} == set(zoo_names()) - {"sprint-15", "mlp"}


@pytest.mark.parametrize("name", PUBLISHED["layers"])
def test_alexnet_layer_by_layer(name: str) -> None:
    network = build(name, {})
    shapes, table = layer_shapes(network), PUBLISHED["layers"][name]
    layers = {layer.name: layer for layer in network.layers}
    work = {row.name: row for row in layer_work(network)}
    for row in table["convolution"]:
        layer, source = layers[row["layer"]], shapes[layers[row["layer"]].inputs[0]]
        assert source == (row["in_channels"], row["input_side"], row["input_side"])
        assert shapes[layer.name] == (row["out_channels"], row["output_side"], row["output_side"])
        assert layer.pair("kernel") == (row["kernel"], row["kernel"])
        assert layer.integer("groups") == row["groups"]
    for row in (*table["convolution"], *table["linear"]):
        assert (work[row["layer"]].parameters, work[row["layer"]].forward_mac) == (
            row["parameters"],
            row["forward_mac"],
        )
    assert {row["layer"] for row in (*table["convolution"], *table["linear"])} == {
        layer.name for layer in network.layers if layer.kind in ("convolution", "linear")
    }


@pytest.mark.parametrize("name", PUBLISHED["shares"])
def test_share_of_fully_connected_parameters(name: str) -> None:
    rows = layer_work(build(name, {}))
    share = sum(row.parameters for row in rows if row.kind == "linear") / sum(row.parameters for row in rows)
    assert share == pytest.approx(
        PUBLISHED["shares"][name]["linear_parameters"], abs=PUBLISHED["shares"][name]["tolerance"]
    )


def test_sprint_15_is_of_the_published_class() -> None:
    published, network = PUBLISHED["sprint_15"], build("sprint-15", {})
    trained = [row.kind for row in layer_work(network) if row.parameters]
    assert len(trained) == published["weight_layers"]
    assert trained == sorted(trained)  # convolutions, then fully connected layers
    counted = totals(network, convolution="im2col")
    assert abs(counted.parameters - published["parameters"]) <= published["parameters_tolerance"]
    assert published["least_forward_mac"] <= counted.forward_mac <= published["most_forward_mac"]
    assert counted.kernel_calls >= published["least_kernel_calls"]
    assert "stand-in" in network.notes.lower()


@pytest.mark.parametrize(
    ("name", "weight_layers", "input_side"),
    [("alexnet", 8, 227), ("alexnet-owt", 8, 224), ("alexnet-mxnet", 8, 224), ("overfeat", 8, 231)]
    + [("inception-v3", None, 299), ("inception-bn", None, 224)]
    + [(f"vgg{depth}", depth, 224) for depth in (11, 16, 19)]
    + [(f"resnet{depth}", depth, 224) for depth in (18, 34, 50, 101, 152, 200)]
    + [(f"resnet{depth}", depth, 32) for depth in (110, 1001, 5000)]
    + [("densenet121", 121, 224), ("efficientnet-b0", None, 224), ("swin-t", None, 224)],
)
def test_depth_and_input(name: str, weight_layers: int | None, input_side: int) -> None:
    network = build(name, {})
    assert network.input_shape == (3, input_side, input_side)
    main = [
        layer.name
        for layer in network.layers
        if layer.kind in ("convolution", "linear") and not layer.name.endswith("project")
    ]
    assert weight_layers in (None, len(main))


OTHER_TASKS = ("yolov3", "mlp", "unet", "resnet110", "resnet1001", "resnet5000")


def is_classifier(name: str) -> bool:
    return name not in OTHER_TASKS and len(build(name, {}).input_shape) > 1


@pytest.mark.parametrize("name", [name for name in zoo_names() if is_classifier(name)])
def test_every_classifier_ends_in_a_loss_over_imagenet(name: str) -> None:
    network = build(name, {})
    shapes = layer_shapes(network)
    assert network.name == name
    assert network.dataset == "imagenet-1k"
    assert network.notes
    assert network.layers[-1].kind == "loss"
    assert shapes[network.layers[-1].inputs[0]] == (1000,)
    read = {source for layer in network.layers for source in layer.inputs}
    assert [layer.name for layer in network.layers if layer.name not in read] == ["loss"]


def test_yolov3_detects_on_three_scales() -> None:
    network = build("yolov3", {})
    shapes = layer_shapes(network)
    boxes = 3 * (5 + 20)
    assert [shapes[f"detector{number}.boxes"] for number in (1, 2, 3)] == [(boxes, side, side) for side in (13, 26, 52)]
    assert [shapes[f"detector{number}.concat"][0] for number in (2, 3)] == [512 + 256, 256 + 128]
    kinds = [layer.kind for layer in network.layers]
    assert kinds.count("convolution") == 75
    assert kinds.count("batch_norm") == kinds.count("activation") == 72
    assert (kinds.count("add"), kinds.count("upsample"), kinds.count("loss")) == (23, 2, 3)
    assert network.dataset is None
    with pytest.raises(ParameterError, match="argument input of network yolov3 must be a multiple of 32, got 400"):
        build("yolov3", {"input": "400"})


def test_unet_joins_what_it_had_at_every_size() -> None:
    network = build("unet", {"input": "64", "classes": "5"})
    shapes = layer_shapes(network)
    assert [shapes[f"down{level}.conv2"] for level in (1, 5)] == [(64, 64, 64), (1024, 4, 4)]
    assert [shapes[f"up{level}.concat"] for level in (4, 1)] == [(1024, 8, 8), (128, 64, 64)]
    assert shapes["pixels"] == (64 * 64, 5)
    assert network.dataset is None
    with pytest.raises(ParameterError, match="argument input of network unet must be a multiple of 16, got 100"):
        build("unet", {"input": "100"})


def test_swin_attends_within_windows_every_other_time_shifted() -> None:
    network = build("swin-t", {})
    shapes = layer_shapes(network)
    attentions = [layer for layer in network.layers if layer.kind == "attention"]
    assert [layer.integer("windows") for layer in attentions] == [64] * 2 + [16] * 2 + [4] * 6 + [1] * 2
    assert [layer.integer("heads") for layer in attentions] == [3] * 2 + [6] * 2 + [12] * 6 + [24] * 2
    shifts = [layer.integer("shift") for layer in network.layers if layer.name.endswith(".windows")]
    assert shifts == [0, 3] * 5 + [0, 0]
    merges = [layer.name for layer in network.layers if layer.name.endswith("merge")]
    assert [shapes[name] for name in merges] == [(784, 384), (196, 768), (49, 1536)]


def test_mlp_by_hand() -> None:
    counted = totals(build("mlp", {"input": "6", "hidden": "5", "layers": "3", "classes": "4"}))
    assert counted.parameters == (6 + 1) * 5 + 2 * (5 + 1) * 5 + (5 + 1) * 4
    assert counted.forward_mac == 6 * 5 + 2 * 5 * 5 + 5 * 4
    assert build("mlp", {}).dataset is None


def losses(network: Network) -> dict[str, Any]:
    return {layer.name: layer.attributes["weight"] for layer in network.layers if layer.kind == "loss"}


def test_arguments_change_the_network_and_its_name() -> None:
    plain, heads = build("googlenet", {"auxiliary": "false"}), build("googlenet", {"auxiliary": "true"})
    assert losses(plain) == {"loss": 1.0}
    assert losses(heads) == {"auxiliary1.loss": 0.3, "auxiliary2.loss": 0.3, "loss": 1.0}
    assert heads.name == "googlenet:auxiliary=true"
    assert plain.layers == build("googlenet", {}).layers
    assert build("resnet50", {"stride": "1x1"}).name == "resnet50:stride=1x1"
    assert build("resnet50", {"stride": "3x3"}).layers == build("resnet50", {}).layers


def test_resnet_for_small_images() -> None:
    small = build("resnet18", {"input": "32", "classes": "10", "stem": "cifar"})
    shapes = layer_shapes(small)
    assert small.name == "resnet18:classes=10,input=32,stem=cifar"
    assert small.dataset == "cifar-10"
    assert (shapes["conv1"], shapes["stage4.2.relu"], shapes["fc"]) == ((64, 32, 32), (512, 4, 4), (10,))
    assert "pool1" not in shapes
    assert build("resnet18", {"input": "224", "classes": "1000", "stem": "imagenet"}).layers == (
        build("resnet18", {}).layers
    )


@pytest.mark.parametrize(
    ("arguments", "dataset"),
    [
        ({"input": "32", "classes": "10"}, "cifar-10"),
        ({"input": "32", "classes": "100"}, None),
        ({"input": "96", "classes": "10"}, None),
        ({"input": "288"}, "imagenet-1k"),
    ],
)
def test_dataset_is_named_only_where_image_and_classes_are_its_own(
    arguments: dict[str, str], dataset: str | None
) -> None:
    assert build("resnet50", arguments).dataset == dataset


def test_parameters_of_convolutions_do_not_depend_on_the_image() -> None:
    small, large = (totals(build("resnet34", {"input": side})) for side in ("64", "128"))
    assert small.parameters == large.parameters
    fully_connected = 512 * 1000
    assert large.forward_mac - fully_connected == 4 * (small.forward_mac - fully_connected)


def test_pre_activation_normalises_before_convolutions() -> None:
    network = build("resnet200", {})
    layers = {layer.name: layer for layer in network.layers}
    kinds = [layer.kind for layer in network.layers]
    assert kinds.count("add") == 66
    assert kinds.count("convolution") == 1 + 3 * 66 + 4  # stem, three a block, one projection a stage
    assert kinds.count("batch_norm") == 1 + 3 * 66 - 1 + 1  # the first block reads the stem's, one follows the last
    readers = {name: [layer.kind for layer in network.layers if name in layer.inputs] for name in layers}
    assert all("activation" not in readers[name] for name, layer in layers.items() if layer.kind == "add")


def test_arguments_are_documented() -> None:
    assert arguments_of("vgg16") == {}
    assert "default 3x3" in arguments_of("resnet101")["stride"]
    assert set(arguments_of("googlenet")) == {"auxiliary"}
    assert "whole number from 1 to 9999; default 224" in arguments_of("resnet18")["input"]


def test_bad_names_and_arguments() -> None:
    with pytest.raises(
        UnknownNameError, match=r"network must be a known name, got 'resnet51'; did you mean 'resnet50'"
    ):
        build("resnet51", {})
    with pytest.raises(UnknownNameError, match="did you mean 'vgg16'"):
        arguments_of("vgg-16")
    with pytest.raises(UnknownNameError, match=r"argument of network googlenet .* did you mean 'auxiliary'"):
        build("googlenet", {"auxilary": "true"})
    with pytest.raises(UnknownNameError, match="argument of network resnet18"):
        build("resnet18", {"stride": "1x1"})
    with pytest.raises(ParameterError, match="argument stride of network resnet50 must be 3x3 or 1x1, got '2x2'"):
        build("resnet50", {"stride": "2x2"})
    for value in ("0", "-1", "1.5", "10000", "٣", " 32", "9" * 5000):
        with pytest.raises(ParameterError, match="argument input of network resnet18 must be a whole number from 1 to"):
            build("resnet18", {"input": value})


def test_original_regularisation_is_there() -> None:
    kinds = {
        name: [layer.kind for layer in build(name, {}).layers] for name in ("alexnet", "googlenet", "vgg16", "resnet50")
    }
    assert [kinds[name].count("lrn") for name in kinds] == [2, 2, 0, 0]
    assert [kinds[name].count("dropout") for name in kinds] == [2, 1, 2, 0]
    assert kinds["resnet50"].count("batch_norm") == kinds["resnet50"].count("convolution") == 53
    assert set().union(*kinds.values()) <= set(LAYER_KINDS)
