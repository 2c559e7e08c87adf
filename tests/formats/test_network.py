"""Network files: graphs there and back."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.errors import InputFileError
from planner.formats.network import NETWORK
from planner.networks.zoo import build, zoo_names

HEAD = 'format = "planner/network"\nversion = 1\nname = "n"\ninput = [3, 8, 8]\n'
CONV = '[[layers]]\nname = "c"\nkind = "convolution"\nattributes = { channels = 4, kernel = 3 }\n'


@pytest.mark.parametrize("name", sorted(zoo_names())[::3])
def test_a_bundled_network_comes_back_as_it_was(name: str) -> None:
    network = build(name, {})
    assert NETWORK.parse(NETWORK.dump(network), "x.toml") == network


def test_left_out_inputs_are_the_layer_before(assets: Path) -> None:
    network = NETWORK.read(assets / "network" / "v1" / "example.toml")
    assert {layer.name: layer.inputs for layer in network.layers} == {
        "conv": ("input",), "relu": ("conv",), "add": ("conv", "relu"), "drop": ("add",), "flat": ("drop",),
        "fc": ("flat",), "loss": ("fc",),
    }  # fmt: skip
    assert network.layers[0].attributes["kernel"] == (3, 3)
    assert network.layers[0].attributes["stride"] == 1
    assert (network.dataset, network.optimizer) == ("cifar-10", "adam")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (HEAD, "layers: key must be given"),
        (HEAD + CONV.replace("convolution", "convolutoin"), r"layers\[0\].kind: value must be one of convolution"),
        (
            HEAD + CONV.replace("kernel", "kernal"),
            "attribute must be a known name, got 'kernal'; did you mean 'kernel'",
        ),
        (HEAD + CONV.replace("channels = 4,", ""), "layer c: channels must be given"),
        (HEAD + CONV.replace("= 4", "= 0"), "layer c: channels must be a whole number from 1"),
        (HEAD + CONV.replace("= 4", "= -4"), r"layers\[0\].attributes.channels: value must"),
        (HEAD + CONV.replace("= 3 ", "= [3, 3, 3] "), r"layers\[0\].attributes.kernel: value must"),
        (HEAD + CONV + CONV, "layer names must be unique, and not 'input', got 'c'"),
        (HEAD + CONV + 'inputs = ["d"]', "input must be a known name, got 'd'"),
        (HEAD + CONV + 'input = ["input"]', r"layers\[0\].input: key must .* did you mean 'inputs'"),
        (HEAD.replace("[3, 8, 8]", "[3, 8, 8, 8]") + CONV, "input: value must be a list of 1 to 3 values"),
        (HEAD.replace("[3, 8, 8]", "[3, 0, 8]") + CONV, r"input\[1\]: value must be a whole number from 1"),
        (
            HEAD + '[[layers]]\nname = "fc"\nkind = "linear"\nattributes = { features = 10 }\n',
            r"^x.toml: layer fc: input shape must be a vector .*, got \(3, 8, 8\); add a flatten layer before it$",
        ),
        (HEAD + CONV.replace("kernel = 3", "kernel = 11"), "^x.toml: layer c: kernel must be at most the padded input"),
        (
            HEAD + CONV.replace("kernel = 3", "kernel = 3, groups = 2"),
            "^x.toml: layer c: channels in must be divisible",
        ),
        (
            HEAD + CONV + "[transformer]\nheads = 12\n",
            "^x.toml: transformer: key must be left out, as blocks, heads and widths are found in the layers; ",
        ),
        (HEAD + "blocks = [1, 2]\n" + CONV, "^x.toml: blocks: key must be left out, as blocks, heads and widths are"),
        (HEAD + 'optimizer = "adma"\n' + CONV, "optimizer: value must be one of none, sgd"),
    ],
)
def test_mistakes_name_layer_and_rule(text: str, sentence: str) -> None:
    with pytest.raises(InputFileError, match=sentence):
        NETWORK.parse(text, "x.toml")
