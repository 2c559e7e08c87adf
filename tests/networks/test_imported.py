"""Networks that are read from PyTorch modules and ONNX files."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner import catalog
from planner.domain.configuration import Configurations
from planner.domain.network import Network, layer_shapes
from planner.errors import InputFileError, ParameterError, PlannerError, UnknownNameError
from planner.formats.network import NETWORK
from planner.workload.calls import totals
from planner.workload.memory import Memory
from planner.workload.memory_rules import MemoryRules
from planner.workload.program import block_starts
from planner.workload.shards import tensor_shard

FILE = str(Path(__file__).with_name("modules_to_read.py"))


def read(factory: str) -> Network:
    return catalog.find_network(f"{FILE}:{factory}")


def structure(network: Network) -> list[tuple[str, tuple[object, ...], tuple[int, ...]]]:
    shapes = layer_shapes(network)
    return [(one.kind, tuple(one.attributes.values()), shapes[one.name]) for one in network.layers]


def test_a_module_is_the_network_that_the_zoo_has() -> None:
    sizes = "layers=3,hidden=64,heads=4,kv_heads=2,ffn=176,vocabulary=500,sequence=64"
    assert structure(read("decoder")) == structure(catalog.find_network(f"llama:{sizes}"))
    assert structure(read("unfused:input=64")) == structure(catalog.find_network(f"llama:{sizes},attention=unfused"))


def test_degrees_apply_to_what_is_read() -> None:
    network = read("decoder")
    assert len(block_starts(network)) == 4
    halves = [totals(tensor_shard(network, degree)).parameters for degree in (1, 2)]
    norms = 7 * 64
    assert halves[1] - norms == (halves[0] - norms) // 2


@pytest.mark.parametrize("factory", ["resnet:input=3x64x64", "gpt:input=64"])
def test_what_is_written_reads_back_the_same(factory: str, tmp_path: Path) -> None:
    network = read(factory)
    path = tmp_path / "mine.toml"
    path.write_text(NETWORK.dump(network))
    assert NETWORK.read(path) == network


BAD = {
    "resnet": (ParameterError, "argument input of .*:resnet must be given"),
    "resnet:input=3xx": (ParameterError, "argument input .* must be sizes of one sample"),
    "resnet:input=4x64x64": (InputFileError, "resnet must run on the meta device"),
    "resnet:size=3": (UnknownNameError, "'size'"),
    "of_data:input=8": (InputFileError, "of_data must run on the meta device, without weights or data"),
    "needs_weights:input=8": (InputFileError, "needs_weights must build on the meta device"),
    "no_module:input=8": (InputFileError, "no_module must return a torch.nn.Module, got int"),
    "resnets:input=8": (InputFileError, "file must define the factory resnets, got .*resnet"),
    "prints_and_leaves": (InputFileError, "prints_and_leaves must build on the meta device, .*, got SystemExit: 7"),
    "samples_second": (InputFileError, "inputs must have samples on their first axis, as with batch_first=True"),
    "of_unknown:input=8": (
        InputFileError, r"known, got aten.linalg_qr \(1 time, with 5.8% of the FLOP and 39.0% of the bytes\); --allow"
    ),
}  # fmt: skip


@pytest.mark.parametrize("text", BAD)
def test_what_cannot_be_read_is_said_in_a_sentence(text: str) -> None:
    kind, words = BAD[text]
    with pytest.raises(PlannerError, match=words) as caught:
        read(text)
    assert isinstance(caught.value, kind)


def test_what_a_factory_prints_is_not_part_of_an_answer(capsys: Any) -> None:
    with pytest.raises(PlannerError):
        read("prints_and_leaves")
    assert capsys.readouterr() == ("", "hello\n")


@pytest.mark.parametrize("factory", ["adapted", "again", "encoder", "both_sides", "of_nodes", "steps"])
def test_of_what_is_shared_frozen_or_of_several_inputs_parameters_and_flop_are_those_of_torch(
    factory: str, monkeypatch: Any
) -> None:
    import torch  # noqa: PLC0415
    from torch.utils.flop_counter import FlopCounterMode  # noqa: PLC0415

    monkeypatch.syspath_prepend(str(Path(FILE).parent))
    import modules_to_read  # type: ignore[import-not-found]  # noqa: PLC0415

    work = totals(read(factory))
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        module, examples = getattr(modules_to_read, factory)()
        module(*(examples.values() if isinstance(examples, dict) else examples))
    parameters = list(module.parameters())
    assert work.parameters == sum(one.numel() for one in parameters)
    assert work.trained == sum(one.numel() for one in parameters if one.requires_grad)
    assert 2 * work.forward_mac == pytest.approx(counter.get_total_flops() / 2, rel=0.01)


def test_degrees_apply_to_blocks_the_first_of_which_reads_the_input() -> None:
    network = read("encoder")
    assert len(block_starts(network)) == 5
    whole, half = (totals(tensor_shard(network, degree)) for degree in (1, 2))
    assert half.forward_mac == pytest.approx(whole.forward_mac / 2, rel=0.05)


def test_unknown_operators_are_allowed_when_asked() -> None:
    name = catalog.allowing_unknown(f"{FILE}:of_unknown:input=8")
    assert [one.kind for one in catalog.find_network(name).layers] == ["linear", "operator", "loss"]
    assert catalog.allowing_unknown("resnet50") == "resnet50"


def test_of_a_factory_that_is_not_there_the_nearest_or_a_few_are_named() -> None:
    with pytest.raises(InputFileError, match=r"must define the factory step, got steps$"):
        read("step")
    with pytest.raises(InputFileError, match=r"must define the factory nofunc, got \w+, \w+, \w+, \.\.\.$"):
        read("nofunc")


def test_a_file_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InputFileError, match="file must exist"):
        catalog.find_network("nothing_here.py:build")


def onnx_file(path: Path, sides: list[Any]) -> Path:
    """Write a convolution, a ReLU, a mean over pixels and a linear layer, whose input has these sides."""
    onnx = pytest.importorskip("onnx")
    make, floats = onnx.helper, onnx.TensorProto.FLOAT
    sizes = {"kernel": [16, 3, 3, 3], "matrix": [10, 16], "bias": [10]}
    values = [make.make_tensor(name, floats, dims, [0.0] * prod(dims)) for name, dims in sizes.items()]
    nodes = [
        make.make_node("Conv", ["image", "kernel"], ["wide"], pads=[1, 1, 1, 1], strides=[2, 2]),
        make.make_node("Relu", ["wide"], ["active"]),
        make.make_node("GlobalAveragePool", ["active"], ["pooled"]),
        make.make_node("Flatten", ["pooled"], ["flat"]),
        make.make_node("Gemm", ["flat", "matrix", "bias"], ["scores"], transB=1),
    ]
    ends = [make.make_tensor_value_info(name, floats, shape) for name, shape in (("image", sides), ("scores", None))]
    graph = make.make_graph(nodes, "small", ends[:1], ends[1:], values)
    onnx.save(make.make_model(graph), path)
    return path


def test_an_onnx_file_is_read_with_the_sizes_it_leaves_open(tmp_path: Path) -> None:
    path = onnx_file(tmp_path / "open.onnx", ["batch", 3, "height", "width"])
    with pytest.raises(ParameterError, match=r"input image of .* must be of fixed sizes .* got 'batchx3xheightxwidth'"):
        catalog.find_network(str(path))
    network = catalog.find_network(f"{path}:input=3x32x32")
    assert [one.kind for one in network.layers] == [
        "convolution", "activation", "global_pool", "flatten", "linear", "loss"
    ]  # fmt: skip
    assert totals(network).parameters == 16 * 27 + 160 + 10
    assert totals(network).forward_mac == 16 * 27 * 16**2 + 160


def test_copies_and_tables_of_an_exporter_are_no_parameters(tmp_path: Path) -> None:
    """A head is its table turned round, a start is repeated for each of 2 samples; sines and a mask are constants."""
    onnx = pytest.importorskip("onnx")
    make, types = onnx.helper, onnx.TensorProto
    table = np.arange(24.0, dtype=np.float32).reshape(6, 4)
    start = np.repeat(np.arange(12.0, dtype=np.float32).reshape(1, 3, 4), 2, axis=0)
    sines, mask = np.ones((1, 3, 4), np.float32), np.full((3, 4), -3e38, np.float32)
    named = {"table": table, "start": start, "sines": sines, "mask": mask, "head": table.T.copy()}
    nodes = [
        make.make_node("Gather", ["table", "tokens"], ["rows"]),
        make.make_node("Mul", ["rows", "sines"], ["turned"]),
        make.make_node("Add", ["turned", "start"], ["started"]),
        make.make_node("Add", ["started", "mask"], ["hidden"]),
        make.make_node("MatMul", ["hidden", "head"], ["logits"]),
    ]
    ends = [
        make.make_tensor_value_info(*one) for one in (("tokens", types.INT64, [2, 3]), ("logits", types.FLOAT, None))
    ]
    values = [onnx.numpy_helper.from_array(value, name) for name, value in named.items()]
    path = tmp_path / "exported.onnx"
    onnx.save(make.make_model(make.make_graph(nodes, "small", ends[:1], ends[1:], values)), path)
    work = totals(catalog.find_network(str(path)))
    assert (work.parameters, work.forward_mac) == (table.size + start.size // 2, 3 * 4 * 6)


def test_layers_whose_values_an_exporter_made_one_have_parameters_each(tmp_path: Path) -> None:
    """Of equal initial values it is not known whether layers share them."""
    onnx = pytest.importorskip("onnx")
    make, types = onnx.helper, onnx.TensorProto
    values = [
        onnx.numpy_helper.from_array(np.ones(size, np.float32), name)
        for name, size in (("scale", 4), ("square", (4, 4)))
    ]
    chain = [
        ("LayerNormalization", "scale"),
        ("MatMul", "square"),
        ("LayerNormalization", "scale"),
        ("MatMul", "square"),
    ]
    nodes = [make.make_node(kind, [f"at{n}", weight], [f"at{n + 1}"]) for n, (kind, weight) in enumerate(chain)]
    ends = [make.make_tensor_value_info(f"at{n}", types.FLOAT, [2, 3, 4]) for n in (0, len(chain))]
    path = tmp_path / "merged.onnx"
    onnx.save(make.make_model(make.make_graph(nodes, "small", ends[:1], ends[1:], values)), path)
    network = catalog.find_network(str(path))
    assert totals(network).parameters == 2 * (4 + 16)
    assert any(words.startswith("20 parameters that layers share are counted in each") for words in network.unmodelled)


def test_sequences_that_share_a_table_have_positions_of_their_own(tmp_path: Path) -> None:
    """As of BART; a bias of its logits has an axis for samples."""
    onnx = pytest.importorskip("onnx")
    make, types = onnx.helper, onnx.TensorProto
    sizes = {"table": [9, 4], "places": [6, 4], "others": [5, 4], "head": [4, 7], "bias": [1, 7]}
    values = [
        onnx.numpy_helper.from_array(np.arange(float(prod(dims)), dtype=np.float32).reshape(dims), name)
        for name, dims in sizes.items()
    ]
    values += [onnx.numpy_helper.from_array(np.arange(n), f"at{n}") for n in (5, 3)]
    nodes = [
        make.make_node(*one)
        for one in (
            ("Gather", ["table", "tokens"], ["rows"]), ("Gather", ["places", "at5"], ["placed"]),
            ("Gather", ["table", "targets"], ["others_rows"]), ("Gather", ["others", "at3"], ["others_placed"]),
            ("Add", ["rows", "placed"], ["first"]), ("Add", ["others_rows", "others_placed"], ["second"]),
            ("Concat", ["first", "second"], ["both"]), ("MatMul", ["both", "head"], ["scores"]),
            ("Add", ["scores", "bias"], ["logits"]),
        )
    ]  # fmt: skip
    nodes[6].attribute.append(make.make_attribute("axis", 1))
    ends = [
        make.make_tensor_value_info(*one)
        for one in (("tokens", types.INT64, [2, 5]), ("targets", types.INT64, [2, 3]), ("logits", types.FLOAT, None))
    ]
    path = tmp_path / "two.onnx"
    onnx.save(make.make_model(make.make_graph(nodes, "two", ends[:2], ends[2:], values)), path)
    network = catalog.find_network(str(path))
    work = totals(network)
    assert (work.parameters, work.forward_mac) == (sum(map(prod, sizes.values())), 8 * 4 * 7)
    assert network.unmodelled == ()


def test_values_that_cannot_be_read_are_said_where_they_count(tmp_path: Path) -> None:
    """A table that may be turned round depends on them; a convolution alone does not."""
    onnx = pytest.importorskip("onnx")
    make, types = onnx.helper, onnx.TensorProto
    table = np.arange(240.0, dtype=np.float32).reshape(60, 4)
    values = [onnx.numpy_helper.from_array(one, name) for name, one in (("table", table), ("head", table.T.copy()))]
    nodes = [make.make_node("Gather", ["table", "tokens"], ["rows"]), make.make_node("MatMul", ["rows", "head"], ["y"])]
    ends = [make.make_tensor_value_info(*one) for one in (("tokens", types.INT64, [2, 3]), ("y", types.FLOAT, None))]
    path = tmp_path / "whole.onnx"
    model = make.make_model(make.make_graph(nodes, "small", ends[:1], ends[1:], values))
    how = {"save_as_external_data": True, "location": "whole.onnx.data", "size_threshold": 0}
    onnx.save(model, path, **how)
    whole = catalog.find_network(str(path))
    lacking = catalog.find_network(str(path.rename(tmp_path.parent / "lacking.onnx")))
    assert whole.unmodelled == ()
    assert [one.partition(" cannot")[0] for one in lacking.unmodelled] == ["Values in whole.onnx.data"]
    assert [totals(one).parameters for one in (whole, lacking)] == [240, 480]


def test_parts_of_a_sequence_and_constants_that_are_repeated_are_read(tmp_path: Path) -> None:
    """As an exporter writes them that folds nothing: queries, keys and values of one product; zeros for a bias."""
    onnx = pytest.importorskip("onnx")
    make, types = onnx.helper, onnx.TensorProto
    arrays = {"joined": np.ones((4, 12)), "four": np.array(4), "zero": np.array([0.0]), "wide": np.array([4])}
    values = [
        onnx.numpy_helper.from_array(one.astype(np.float32 if one.dtype == float else np.int64), name)
        for name, one in arrays.items()
    ] + [onnx.numpy_helper.from_array(np.array(at), f"at{at}") for at in range(3)]
    nodes = [
        make.make_node("MatMul", ["x", "joined"], ["all"]),
        make.make_node("SplitToSequence", ["all", "four"], ["parts"], axis=2),
        *(make.make_node("SequenceAt", ["parts", f"at{at}"], [f"part{at}"]) for at in range(3)),
        make.make_node("Transpose", ["part1"], ["turned"], perm=[0, 2, 1]),
        make.make_node("MatMul", ["part0", "turned"], ["scores"]), make.make_node("Softmax", ["scores"], ["weights"]),
        make.make_node("MatMul", ["weights", "part2"], ["context"]),
        make.make_node("CastLike", ["zero", "x"], ["none"]), make.make_node("Expand", ["none", "wide"], ["zeros"]),
        make.make_node("Add", ["context", "zeros"], ["y"]),
    ]  # fmt: skip
    ends = [make.make_tensor_value_info(*one) for one in (("x", types.FLOAT, [2, 3, 4]), ("y", types.FLOAT, None))]
    path = tmp_path / "raw.onnx"
    onnx.save(make.make_model(make.make_graph(nodes, "raw", ends[:1], ends[1:], values)), path)
    network = catalog.find_network(str(path))
    assert [one.kind for one in network.layers][:2] == ["linear", "attention"]
    assert totals(network).parameters == 4 * 12
    assert totals(network).forward_mac == 3 * 4 * 12 + 2 * 3 * 3 * 4


def written(folder: Path, nodes: list[Any], sizes: dict[str, list[int]], shape: list[int], dimensions: int) -> str:
    """Write nodes from x to y with floats of these sizes; return the file, a new one, as what was read is kept."""
    onnx = pytest.importorskip("onnx")
    make, floats = onnx.helper, onnx.TensorProto.FLOAT
    values = [make.make_tensor(name, floats, dims, np.arange(prod(dims)) / 7 + 1) for name, dims in sizes.items()]
    y = make.make_tensor_value_info("y", floats, [None] * dimensions)
    graph = make.make_graph(nodes, "small", [make.make_tensor_value_info("x", floats, shape)], [y], values)
    path = folder / f"{len(list(folder.iterdir()))}.onnx"
    onnx.save(make.make_model(graph), path)
    return str(path)


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from([("LSTM", 4), ("GRU", 3), ("RNN", 1)]), st.integers(1, 2), st.integers(1, 2), st.integers(1, 6),
    st.tuples(st.integers(2, 5), st.integers(2, 5)), st.sampled_from(["w r", "w r b"]), st.booleans(),
)  # fmt: skip
def test_recurrent_layers_are_their_products(  # noqa: PLR0917 - all vary
    tmp_path: Path, kind: tuple[str, int], directions: int, layers: int, steps: int, sizes: tuple[int, int], own: str,
    is_end: bool,  # noqa: FBT001
) -> None:  # fmt: skip
    """One behind another, in one direction or both, with a bias or without; all states are read, or the last alone."""
    make = pytest.importorskip("onnx").helper
    (name, gates), (features, width) = kind, sizes
    nodes, dims, source, macs = [], dict[str, list[int]](), "x", 0
    for at in range(layers):
        rows = directions * gates * width
        every = {"w": [gates * width, features], "r": [gates * width, width], "b": [2 * gates * width]}
        dims |= {f"{key}{at}": [directions, *every[key]] for key in own.split()}
        macs += steps * rows * (features + width)
        way = {"hidden_size": width, "direction": "bidirectional" if directions == 2 else "forward"}
        made = ["", f"o{at}"] if is_end and at == layers - 1 else [f"o{at}"]
        nodes.append(make.make_node(name, [source, *(f"{key}{at}" for key in own.split())], made, **way))
        order = [1, 0, 2] if len(made) > 1 else [0, 2, 1, 3]
        nodes.append(make.make_node("Transpose", [f"o{at}"], [f"t{at}"], perm=order))
        shape = [3, directions * width] if len(made) > 1 else [steps, 3, directions * width]
        nodes.append(make.make_node("Constant", [], [f"s{at}"], value_ints=shape))
        nodes.append(make.make_node("Reshape", [f"t{at}", f"s{at}"], [f"l{at}"]))
        source, features = f"l{at}", directions * width
    dims["head"] = [directions * width, 7]
    first = [make.make_node("Transpose", ["x"], ["turned"], perm=[1, 0, 2])]
    nodes[0].input[0] = "turned"
    nodes.append(make.make_node("MatMul", [source, "head"], ["y"]))
    path = written(tmp_path, first + nodes, dims, [3, steps, sizes[0]], 2 if is_end else 3)
    work = totals(catalog.find_network(path))
    assert work.parameters == sum(map(prod, dims.values()))
    assert work.forward_mac == macs + directions * width * 7 * (1 if is_end else steps)


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.tuples(*[st.integers(1, 3)] * 3), st.sampled_from([[], [1], [1, 1]]))
def test_parameters_of_one_number_count_and_constants_do_not(
    tmp_path: Path, sides: tuple[int, int, int], scalar: list[int]
) -> None:
    make = pytest.importorskip("onnx").helper
    a, b, c = sides
    own = {
        "kernel": [a, 2, 3, 3], "bias": [a], "scale": [a], "shift": [a], "slope": [1], "up": [a, b, 2, 2],
        "up_bias": [b], "matrix": [c, b], "vector": [c], "last": [c, 1], "end": [1],
    }  # fmt: skip
    statistics = {"mean": [a], "variance": [a]}
    nodes = [
        make.make_node("Conv", ["x", "kernel", "bias"], ["wide"]),
        make.make_node("BatchNormalization", ["wide", "scale", "shift", *statistics], ["normed"]),
        make.make_node("PRelu", ["normed", "slope"], ["active"]),
        make.make_node("ConvTranspose", ["active", "up", "up_bias"], ["high"], strides=[2, 2]),
        make.make_node("GlobalAveragePool", ["high"], ["pooled"]),
        make.make_node("Flatten", ["pooled"], ["flat"]),
        make.make_node("Mul", ["flat", "factor"], ["scaled"]),
        make.make_node("Gemm", ["scaled", "matrix", "vector"], ["hidden"], transB=1),
        make.make_node("MatMul", ["hidden", "last"], ["score"]),
        make.make_node("Add", ["score", "end"], ["moved"]),
        make.make_node("Add", ["moved", "factor"], ["y"]),
    ]
    path = written(tmp_path, nodes, own | statistics | {"factor": scalar}, [2, 2, 8, 8], 2)
    assert totals(catalog.find_network(path)).parameters == sum(map(prod, own.values()))


def test_an_unknown_operator_with_weights_counts_as_products_of_positions(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    recurrent = onnx.helper.make_node("LSTM", ["x", "w", "r", "", "", "", "", "peep"], ["all"], hidden_size=32)
    ends = [
        onnx.helper.make_node("Squeeze", ["all", "axis"], ["flat"]),
        onnx.helper.make_node("MatMul", ["flat", "m"], ["y"]),
    ]
    axis = onnx.helper.make_node("Constant", [], ["axis"], value=onnx.numpy_helper.from_array(np.array([1])))
    sizes = {"w": [1, 128, 16], "r": [1, 128, 32], "peep": [1, 96], "m": [32, 64]}
    path = written(tmp_path, [recurrent, axis, *ends], sizes, [2, 10, 16], 3)
    with pytest.raises(InputFileError, match=r"got LSTM \(1 time, with 7\d\.\d% of the FLOP"):
        catalog.find_network(path)


def test_a_file_that_is_no_onnx_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    path = tmp_path / "none.onnx"
    path.write_text("not a model")
    with pytest.raises(InputFileError, match="file must be an ONNX model"):
        catalog.find_network(str(path))


@pytest.mark.started
@pytest.mark.parametrize(
    ("factory", "shape"), [("resnet:input=3x64x64", (3, 64, 64)), ("gpt:input=64", (64,)), ("unfused:input=64", (64,))]
)
def test_parameters_and_flop_are_those_of_torch(factory: str, shape: tuple[int, ...], monkeypatch: Any) -> None:
    import torch  # noqa: PLC0415
    from torch.utils.flop_counter import FlopCounterMode  # noqa: PLC0415

    monkeypatch.syspath_prepend(str(Path(FILE).parent))
    import modules_to_read  # noqa: PLC0415

    work = totals(read(factory))
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        module = getattr(modules_to_read, factory.partition(":")[0])()
        module(torch.empty(2, *shape, dtype=torch.int64 if len(shape) == 1 else torch.float32))
    assert work.parameters == sum(one.numel() for one in module.parameters())
    assert 2 * work.forward_mac == pytest.approx(counter.get_total_flops() / 2, rel=0.01)


@pytest.mark.started
def test_tensors_that_pytorch_saves_of_a_module_are_counted(monkeypatch: Any) -> None:
    """To the byte a sample, in fp32: distinct storages that are no parameters, by the difference of two sub-batches."""
    import torch  # noqa: PLC0415

    monkeypatch.syspath_prepend(str(Path(FILE).parent))
    import modules_to_read  # noqa: PLC0415

    module = modules_to_read.resnet().train()
    own = {one.untyped_storage().data_ptr() for one in module.parameters()}

    def kept(samples: int) -> int:
        found: dict[int, Any] = {}

        def pack(one: Any) -> Any:
            found[one.untyped_storage().data_ptr()] = one
            return one

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda one: one):
            module(torch.randn(samples, 3, 64, 64))
        return sum(one.untyped_storage().nbytes() for key, one in found.items() if key not in own)

    memory = Memory(read("resnet:input=3x64x64"), MemoryRules.of("fp32", "sgd", catalog.find_framework("pytorch")))
    counted = [float(memory.fullest(Configurations.having(sub_batch=n)).activations) for n in (2, 4)]
    assert counted[1] - counted[0] == kept(4) - kept(2)
