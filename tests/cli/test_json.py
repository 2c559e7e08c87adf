"""Documents for job schedulers: how long they are, what can be given back, and the plan to take alone."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # its stubs are a separate package
import pytest

import planner
from planner import catalog
from planner.cli.options import COMMANDS, OPTIONS
from planner.domain.calibration import Calibration
from planner.domain.cluster import Cluster, Node
from planner.formats.calibration import CALIBRATION
from planner.formats.cluster import write_cluster
from planner.formats.documents import dump_json
from planner.formats.suggestion import parse_answers, suggestion_document

Run = Callable[..., tuple[int, str, str]]
LARGEST = 21_000
"""Bytes of a document of five plans."""
CLUSTERS = Path(__file__).parents[2] / "benchmarks" / "clusters"
BF16 = ("--precision", "bf16")
ASKED = (
    ("--target-batch", "138"),
    ("--target-batch", "1024", "--network", "resnet50", "--cluster", "dgx-a100"),
    ("--target-batch", "512", "--network", "gpt2", "--cluster", "dgx-h100"),
    ("--target-batch", "138", "--network", "vgg16", "--cluster", "tsubame-kfc", "--mode", "async"),
    ("--target-batch", "1024", "--network", "resnet50", "--cluster", str(CLUSTERS / "mixed.toml")),
    ("--target-batch", "1536", "--network", "gpt3-175b", "--cluster", str(CLUSTERS / "a100-4096.toml"), *BF16),
)
DGX1 = ("--network", "resnet50", "--cluster", "dgx1-v100", "--target-batch", "1024")


def schema_of(kind: str) -> Any:
    shipped = Path(planner.__file__).parent / "_bundled" / "schemas" / f"{kind}.json"
    return jsonschema.Draft202012Validator(json.loads(shipped.read_text()))


@pytest.mark.parametrize("asked", ASKED, ids=lambda asked: "-".join(Path(one).stem for one in asked[3::2]) or "default")
def test_five_plans_are_short_tell_no_figure_twice_and_are_read_back(asked: tuple[str, ...], run: Run) -> None:
    code, out, err = run("suggest", *asked, "--json")
    assert code == 0, err
    document = json.loads(out)
    assert len(document["plans"]) >= 5 or any(one.get("alike") for one in document["plans"])  # families share a row
    assert len(out.encode()) < LARGEST
    assert [error.message for error in schema_of("suggestion").iter_errors(document)] == []
    assert nulls(document) == []
    sentences = [(one["code"], one["message"]) for one in document["warnings"]]
    assert len(set(sentences)) == len(sentences)
    assert dump_json(suggestion_document(*parse_answers(out, "stdout").suggestions[0])) == out


def nulls(value: Any, place: str = "") -> list[str]:
    """Return the places of keys that are null."""
    items = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    found = [f"{place}.{key}" for key, inner in items if inner is None]
    return found + [one for key, inner in items for one in nulls(inner, f"{place}.{key}")]


def words_of(request: Mapping[str, Any], *leave: str) -> list[str]:
    """Return the options that give the values of a request back."""
    words: list[str] = []
    for name in (one for one in next(x for x in COMMANDS if x.name == "suggest").options if one in request):
        option, value = OPTIONS[name], request[name].get("value")
        if value is None or value is False or name in leave:
            continue
        if isinstance(value, dict) and "step" in value:
            value = f"{value['first']}:{value['last']}:{value['step']}"
        if isinstance(value, dict):
            (value,) = set(value.values())
        if option.switch:
            words += [option.flag]
        elif option.repeatable and isinstance(value, list):
            words += [word for one in value for word in (option.flag, one)]
        else:
            words += [option.flag, ",".join(map(str, value)) if isinstance(value, list) else str(value)]
    return words


@pytest.fixture
def files(tmp_path: Path) -> None:
    """Write a network, a cluster of two nodes and a data set of the user's own here."""
    dgx1 = catalog.find_cluster("dgx1-v100")
    own = Cluster("own", 2, dgx1.node, dgx1.intra_node, dgx1.inter_node, dgx1.host)
    (tmp_path / "own.toml").write_text(write_cluster(own))
    text = (catalog.BUNDLED / "datasets" / "imagenet-1k.toml").read_text()
    (tmp_path / "data.toml").write_text(text)


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    "asked",
    [
        DGX1,
        (*DGX1, "--scenario", "all_reduce*=0.5+inter_node.bandwidth=25GB/s", "--framework", "pytorch@2.1"),
        (*DGX1, "--nodes", "1:600:2", "--gpus-per-node", "8", "--precision", "fp32,fp16", "--pareto", "--top", "3"),
        (
            "--network", "gpt:layers=2,hidden=256,heads=4,sequence=128,vocabulary=8192", "--cluster", "own.toml",
            "--dataset", "samples=1000,bytes_per_sample=512", "--target-batch", "64", "--tolerance", "10%",
        ),
        ("--network", "net.toml", "--cluster", "own.toml", "--dataset", "data.toml", "--target-batch", "64"),
    ],
    ids=["names", "scenario", "ranges", "arguments", "files"],
)  # fmt: skip
def test_what_is_printed_can_be_given_back(asked: tuple[str, ...], run: Run) -> None:
    Path("net.toml").write_text(run("show", "networks", "resnet18", "--toml")[1])
    if "1:600:2" in asked:
        Path("large.toml").write_text(
            run("show", "clusters", "dgx1-v100", "--toml")[1]
            .replace("nodes = 64", "nodes = 999")
            .replace('name = "dgx1-v100"', 'name = "large"')
        )
        asked = tuple("large.toml" if word == "dgx1-v100" else word for word in asked)
    code, out, err = run("suggest", *asked, "--json")
    assert code == 0, err
    first = json.loads(out)
    for name in first["request"]["calibration"]["value"]:
        assert catalog.find_calibration(name).name == name
    # Calibrations that are named serve alone; what was derived of them for the answer would be missing.
    code, out, err = run("suggest", *words_of(first["request"], "calibration"), "--json")
    assert code == 0, err
    again = json.loads(out)
    for document in (first, again):
        for one in document["request"].values():
            one.pop("source", None)
        document["request"] = {key: one for key, one in document["request"].items() if "value" in one}
    assert again == first


@pytest.mark.parametrize("scenario", ["", "gpu=a100-sxm4-80gb"])
def test_calibrations_of_a_request_are_those_that_have_names(scenario: str, run: Run) -> None:
    given = ("--scenario", scenario) if scenario else ()
    request = json.loads(run("suggest", *DGX1, *given, "--json")[1])["request"]
    assert request["calibration"]["value"]
    assert all(catalog.find_calibration(name).name == name for name in request["calibration"]["value"])


ONE_GPU = """format = "planner/cluster"
version = 1
name = "mine"
nodes = 1
node = {{gpus = 1, gpu = "{gpu}"}}
"""


ANY = ("any-steps", "node-links")
"""Calibrations of any GPU."""


@pytest.mark.parametrize(
    ("gpu", "network", "names"),
    [
        ("titan-xp", "resnet18", ["titan-xp", *ANY]),
        # convolutions of the nearest GPU, products of one of the same die, and reconstructions of another cluster
        ("a100-sxm4-40gb", "resnet18", ["a100-sxm4-40gb", *ANY]),
        ("k80", "mlp", [*ANY]),
    ],
)
def test_calibrations_of_a_request_are_accepted_together_and_alone(
    run: Run, gpu: str, network: str, names: list[str]
) -> None:
    Path("mine.toml").write_text(ONE_GPU.format(gpu=gpu))
    asked = ("--network", network, "--cluster", "mine.toml", "--target-batch", "8", "--precision", "fp32")
    code, out, _ = run("suggest", *asked, "--json")
    found = json.loads(out)["request"]["calibration"]["value"]
    assert (code, found) == (0, names)
    words = [word for name in found for word in ("--calibration", name)]
    again, out, err = run("suggest", *asked, *words, "--json")
    assert again == 0, err
    assert json.loads(out)["request"]["calibration"]["value"] == names
    # Of a name that holds no products the command may miss those, but it knows it as one of this GPU.
    of_plan = ("predict", *asked[:4], "--sub-batch", "8", "--precision", "fp32")
    for name in found:
        assert "--calibration" not in run(*of_plan, "--calibration", name)[2].partition("leave out")[0]


def test_a_calibration_that_is_a_file_and_its_own_node_are_given_back(run: Run) -> None:
    base = catalog.find_calibration("v100-sxm2-16gb")
    node = Node(1, catalog.find_accelerator("v100-sxm2-16gb"))
    own = Calibration("mine", base.accelerator, base.entries, node=node)
    Path("here.json").write_text(CALIBRATION.dump(own))
    asked = ("--network", "resnet18", "--calibration", "here.json", "--target-batch", "64", "--json")
    code, out, err = run("suggest", *asked)
    assert code == 0, err
    request = json.loads(out)["request"]
    assert request["cluster"]["value"] == "local"
    assert request["calibration"]["value"][0] == "here.json"
    code, again, err = run("suggest", *words_of(request, "calibration"), "--calibration", "here.json", "--json")
    assert code == 0, err
    assert json.loads(again)["plans"] == json.loads(out)["plans"]


def test_brief_is_the_plan_to_take(run: Run) -> None:
    whole = json.loads(run("suggest", *DGX1, "--json")[1])
    code, out, err = run("suggest", *DGX1, "--json", "--brief", "--epochs", "90")
    assert (code, "Traceback" in err) == (0, False)
    brief = json.loads(out)
    assert [error.message for error in schema_of("brief").iter_errors(brief)] == []
    chosen = whole.get("chosen", 1)
    (plan,) = (one for one in whole["plans"] if one["position"] == chosen)
    assert plan["configuration"].items() <= brief.items()
    assert brief["epoch_s"]["value"] == plan["prediction"]["epoch_s"]["value"]
    assert brief["ranks"] == brief["nodes"] * brief["gpus_per_node"]
    assert brief["walltime_s"]["value"] == pytest.approx(90 * brief["epoch_s"]["value"], rel=0.01)
    assert len(out) < 2_000


def test_brief_of_several_answers_is_one_document(run: Run) -> None:
    out = run("suggest", *DGX1, "--network", "vgg16", "--json", "--brief")[1]
    document = json.loads(out)
    assert [error.message for error in schema_of("briefs").iter_errors(document)] == []
    assert [one["network"] for one in document["briefs"]] == ["resnet50", "vgg16"]


def test_brief_of_nothing_says_what_to_loosen(run: Run) -> None:
    asked = (
        "--network",
        "resnet50",
        "--cluster",
        "dgx1-v100",
        "--nodes",
        "8",
        "--target-batch",
        "1009",
        "--tolerance",
        "0",
    )
    code, out, err = run("suggest", *asked, "--precision", "fp32", "--json", "--brief")
    assert code == 4
    assert err.startswith("planner: no plan meets --target-batch 1009")
    brief = json.loads(out)
    assert [error.message for error in schema_of("brief").iter_errors(brief)] == []
    assert brief["status"] == "none_feasible"
    assert brief["loosen"][0]["option"] == "--tolerance"


def test_epochs_need_a_data_set(run: Run) -> None:
    of = ("--network", "gpt2", "--cluster", "dgx-h100", "--nodes", "1", "--precision", "bf16", "--target-batch", "512")
    asked = (*of, "--json", "--brief", "--epochs")
    code, out, err = run("suggest", *asked, "3")
    error = json.loads(out)
    assert [one.message for one in schema_of("error").iter_errors(error)] == []
    assert (code, error["exit_code"], error["what"], error["got"]) == (2, 2, "--epochs", "3")
    assert err.endswith(f"planner: {error['message']}\n")
    rule = "given with a data set, which network 'gpt2' has not"
    assert err.endswith(f"planner: --epochs must be {rule}, got 3; name one with --dataset\n")
    assert run("suggest", *asked, "0")[0] == 2
    code, out, _ = run("suggest", *asked, "3", "--dataset", "samples=1000000,bytes_per_sample=2048")
    assert code == 0
    assert json.loads(out)["epochs"] == 3


def test_a_network_as_a_document_has_its_work_layer_by_layer(run: Run) -> None:
    document = json.loads(run("show", "networks", "resnet50", "--json")[1])
    assert [error.message for error in schema_of("network-work").iter_errors(document)] == []
    conv1 = document["layers"][0]
    # He et al. 2016: 7x7 convolution of 3 to 64 channels; no gradient of the input, so training is twice forward.
    flop = 2 * 64 * 112 * 112 * 3 * 49
    told = {"name": "conv1", "kind": "convolution", "output": [64, 112, 112], "parameters": 9408, "forward_flop": flop}
    assert (told | {"training_flop": 2 * flop}).items() <= conv1.items()
    totals = document["totals"]
    assert totals["parameters"] == 25_557_032
    for key in ("parameters", "forward_flop", "training_flop"):
        assert totals[key] == sum(layer[key] for layer in document["layers"])
    assert totals["forward_flop"] == 2 * totals["forward_multiply_adds"]
