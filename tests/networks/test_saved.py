"""What modules keep for the backward pass beside what PyTorch saves: distinct storages that are no parameters."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import pytest

from planner import catalog
from planner.domain.configuration import Configurations
from planner.domain.network import Network
from planner.errors import InputFileError
from planner.formats.network import NETWORK
from planner.workload.memory import Memory
from planner.workload.memory_rules import MemoryRules

torch = pytest.importorskip("torch")
FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER))
KEEPING = importlib.import_module("modules_that_keep")

SHAPES = dict.fromkeys(KEEPING.FUNCTIONS, (24, 32)) | dict.fromkeys(KEEPING.DECODERS, (24,))


def read(name: str) -> Network:
    return catalog.find_network(f"{FOLDER}/modules_that_keep.py:{name}:input={'x'.join(map(str, SHAPES[name]))}")


def counted(network: Network, precision: str = "fp32", framework: str = "pytorch", **degrees: int) -> float:
    """Return the bytes of a sample."""
    memory = Memory(network, MemoryRules.of(precision, "sgd", catalog.find_framework(framework)))
    plans = [Configurations.having(sub_batch=n, **degrees) for n in (2, 4)]
    return (float(memory.fullest(plans[1]).activations) - float(memory.fullest(plans[0]).activations)) / 2


def saved(name: str) -> float:
    """Return the bytes of a sample, by the difference of two sub-batches."""

    def of(samples: int) -> int:
        module, found = getattr(KEEPING, name)(), dict[int, Any]()
        own = {one.untyped_storage().data_ptr() for one in module.parameters()}

        def pack(one: Any) -> Any:
            found[one.untyped_storage().data_ptr()] = one
            return one

        shape = (samples, *SHAPES[name])
        values = torch.rand(shape) if len(shape) > 2 else torch.randint(100, shape)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda one: one):
            module(values)
        return sum(one.untyped_storage().nbytes() for key, one in found.items() if key not in own)

    return (of(4) - of(2)) / 2


@pytest.mark.parametrize("name", SHAPES)
def test_what_pytorch_saves_is_counted(name: str) -> None:
    assert counted(read(name)) == pytest.approx(saved(name), rel=1e-3)


@pytest.mark.parametrize("name", KEEPING.DECODERS)
def test_a_part_keeps_no_more_than_its_share_and_what_ranks_share(name: str) -> None:
    """Norms, and keys of one head, are whole on every tensor rank; positions are divided to the last one."""
    network = read(name)
    whole = counted(network)
    assert whole / 2 < counted(network, tensor_parallel=2) < whole
    assert counted(network, context_parallel=2) <= whole * 0.6
    assert counted(network, recompute=2) < whole
    assert whole / 2 <= counted(network, "bf16") < whole


def test_a_kernel_that_does_it_all_keeps_its_input_alone() -> None:
    """So do layers of a framework that fuses activations; of frozen layers a norm keeps nothing for its scale."""
    composed, plain = read("gelu_of_tanh"), read("gelu")
    fused = "pytorch:fused-activation"
    assert counted(composed) - counted(plain) == 3 * 4 * 24 * 24
    assert counted(composed, framework=fused) == counted(plain, framework=fused)
    decoder = read("as_t5")
    frozen = replace(decoder, layers=tuple(replace(one, is_frozen="norm" in one.kind) for one in decoder.layers))
    assert counted(decoder) - counted(frozen) == 5 * 4 * 24 * 32
    assert counted(decoder) - counted(decoder, framework=fused) == 5 * 4 * 24 * 32


def test_what_is_kept_besides_is_written_and_read(tmp_path: Path) -> None:
    network, path = read("as_gpt2"), tmp_path / "mine.toml"
    path.write_text(NETWORK.dump(network))
    assert NETWORK.read(path) == network
    assert {one.kept for one in network.layers if one.kind == "activation"} == {3.0}
    path.write_text(path.read_text().replace("kept = 3.0", "kept = -1.0"))
    with pytest.raises(InputFileError, match=r"layers\[[0-9]+\].kept: value must be 0, or a number"):
        NETWORK.read(path)


NODES = {
    "gelu_of_tanh": [
        ("Pow", ["x", "three"], "cube"), ("Mul", ["cube", "some"], "small"), ("Add", ["x", "small"], "sum"),
        ("Mul", ["sum", "some"], "inner"), ("Tanh", ["inner"], "bent"), ("Add", ["bent", "one"], "gate"),
        ("Mul", ["x", "some"], "half"), ("Mul", ["half", "gate"], "y"),
    ],
    "silu": [("Sigmoid", ["x"], "gate"), ("Mul", ["x", "gate"], "y")],
    "gelu": [
        ("Div", ["x", "some"], "inner"), ("Erf", ["inner"], "bent"), ("Add", ["bent", "one"], "gate"),
        ("Mul", ["x", "gate"], "twice"), ("Mul", ["twice", "some"], "y"),
    ],
    "softmax": [("Softmax", ["x"], "y")],
    "squared": [("Mul", ["x", "x"], "y")],
}  # fmt: skip
"""As an exporter writes these functions."""


@pytest.mark.parametrize("name", NODES)
def test_an_onnx_file_keeps_what_its_module_keeps(name: str, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    make, floats = onnx.helper, onnx.TensorProto.FLOAT
    sizes: dict[str, list[int]] = {
        "first": [32, 24], "a": [24], "second": [24, 10], "b": [10], "three": [], "some": [], "one": []
    }  # fmt: skip
    values = [make.make_tensor(key, floats, dims, [3.0] * prod(dims)) for key, dims in sizes.items()]
    nodes = [
        ("MatMul", ["input", "first"], "wide"), ("Add", ["wide", "a"], "x"), *NODES[name],
        ("MatMul", ["y", "second"], "narrow"), ("Add", ["narrow", "b"], "scores"),
    ]  # fmt: skip
    ends = [make.make_tensor_value_info(*one) for one in (("input", floats, [2, 24, 32]), ("scores", floats, None))]
    graph = make.make_graph(
        [make.make_node(op, ins, [out]) for op, ins, out in nodes], "small", ends[:1], ends[1:], values
    )
    path = tmp_path / "exported.onnx"
    onnx.save(make.make_model(graph), path)
    assert counted(catalog.find_network(str(path))) == counted(read(name))
