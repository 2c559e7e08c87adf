"""Where defaults come from: options, planner.toml, this machine's own calibration, the default request."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner import catalog
from planner.costs.specified import specified_entry
from planner.domain.calibration import Calibration
from planner.domain.cluster import Accelerator, Node
from planner.domain.kernels import BACKWARD_DATA, BACKWARD_WEIGHT, FORWARD, TRAFFIC_KINDS, UPDATE
from planner.formats.calibration import CALIBRATION
from planner.probes.machine import describe_cpu

Run = Callable[..., tuple[int, str, str]]
THIS_CPU = Accelerator(describe_cpu()[0].name, "cpu", 64 * 2.0**30, 50e9, {"fp32": 200e9})
SOURCE = "source"


def made_calibration(name: str = "mine", accelerator: Accelerator = THIS_CPU, precision: str = "fp32") -> Calibration:
    """Return a calibration of every kind of kernel, with the figures of the specification."""
    directions = [FORWARD, BACKWARD_DATA, BACKWARD_WEIGHT]
    keys = [(kind, direction) for kind in ("gemm", "convolution", *TRAFFIC_KINDS) for direction in directions]
    found = [specified_entry(accelerator, *key, precision) for key in [*keys, ("update", UPDATE)]]
    entries = tuple(replace(entry, origin="measured", source="here") for entry in found if entry is not None)
    return Calibration(name, accelerator.name, entries, node=Node(1, accelerator))


@pytest.fixture
def own() -> Calibration:
    """Put a calibration of this machine's CPU into the user's folder."""
    return put(made_calibration())


def put(calibration: Calibration) -> Calibration:
    """Put a calibration into the user's folder."""
    folder = catalog.own_calibrations_folder()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "20260101T000000-mine.json").write_text(CALIBRATION.dump(calibration))
    return calibration


@pytest.fixture
def named_file(tmp_path: Path) -> str:
    path = tmp_path / "here.json"
    path.write_text(CALIBRATION.dump(made_calibration("here")))
    return str(path)


def document(result: tuple[int, str, str]) -> Any:
    code, out, err = result
    assert code == 0, err
    return json.loads(out)


def request_of(result: tuple[int, str, str]) -> Any:
    return {key: {SOURCE: "default"} | one for key, one in document(result)["request"].items()}


def test_the_default_request_answers_the_main_question(run: Run) -> None:
    code, out, err = run("suggest", "--target-batch", "138", "--json")
    assert (code, err) == (0, "")
    answer = json.loads(out)
    assert answer["format"] == "planner/suggestion"
    assert answer["status"] == "found"
    values = answer["request"]
    for key, value in (
        ("network", "sprint-15"),
        ("cluster", "tsubame-kfc"),
        ("mode", ["async"]),
        ("gpus_per_node", [8]),
    ):
        shown = values[key]["value"]
        assert (shown if key != "network" else shown.partition(":")[0], values[key][SOURCE]) == (
            value,
            "default request",
        )
    assert values["sub_batch"]["value"] == list(range(1, 12))
    assert values["target_batch"] == {"value": 138, SOURCE: "option"}


def test_the_same_before_and_after_calibrate(run: Run, request: pytest.FixtureRequest) -> None:
    before = run("suggest", "--target-batch", "138", "--json")
    request.getfixturevalue("own")
    after = run("suggest", "--target-batch", "138", "--json")
    assert after[:2] == before[:2]
    assert after[2] == "planner: this machine has its own calibration 'mine'; --network NAME uses it\n"


def test_any_option_overrides_the_default_request(run: Run) -> None:
    arguments = ("--target-batch", "64", "--sub-batch", "1,2", "--mode", "sync", "--tolerance", "50%", "--nodes", "2:4")
    values = request_of(run("suggest", *arguments, "--json"))
    assert values["sub_batch"] == {"value": [1, 2], SOURCE: "option"}
    assert values["mode"] == {"value": ["sync"], SOURCE: "option"}
    assert values["nodes"] == {"value": [2, 3, 4], SOURCE: "option"}
    assert values["tolerance"] == {"value": {"sync": 0.5}, SOURCE: "option"}
    assert values["cluster"][SOURCE] == "default request"


def test_a_network_alone_uses_this_machines_own_calibration(run: Run, own: Calibration) -> None:
    values = request_of(run("suggest", "--target-batch", "16", "--network", "resnet18", "--json"))
    assert values["cluster"] == {"value": "local", SOURCE: "own calibration"}
    assert values["calibration"] == {"value": [own.name], SOURCE: "own calibration"}
    assert values["nodes"]["value"] == [1]
    assert values["mode"] == {"value": ["sync"], SOURCE: "default"}
    assert values["tolerance"]["value"] == {"sync": 0}


def test_the_doctor_says_what_an_own_calibration_holds(run: Run, own: Calibration) -> None:
    checks = {one["part"]: one for one in document(run("doctor", "--json"))["checks"]}
    assert checks["own calibration"]["found"] == f"kernels of {own.accelerator}, no date"
    put(replace(own, environment={"framework": "pytorch 1.0"}, date="2026-01-02"))
    checks = {one["part"]: one for one in document(run("doctor", "--json"))["checks"]}
    assert checks["own calibration"]["found"] == f"kernels of {own.accelerator}, 2026-01-02, by torch 1.0"
    assert checks["own calibration"]["remedy"] == "planner calibrate"


def test_an_own_calibration_of_an_absent_device_is_not_used(run: Run) -> None:
    put(made_calibration(accelerator=replace(THIS_CPU, name="another-cpu")))
    code, out, err = run("suggest", "--target-batch", "16", "--network", "resnet18")
    assert (code, out) == (2, "")
    assert err.startswith(
        "planner: --cluster or --calibration must be given with --network, got nothing; this machine has"
    )


def test_a_named_calibration_implies_cluster_local(run: Run, named_file: str) -> None:
    arguments = ("--network", "resnet18", "--calibration", named_file, "--json")
    answer = document(run("suggest", "--target-batch", "64", *arguments))
    assert answer["request"]["cluster"] == {"value": "local", SOURCE: "calibration"}
    assert answer["request"]["calibration"] == {"value": [named_file], SOURCE: "option"}
    assert {plan["configuration"]["nodes"] for plan in answer["plans"]} == {1}


def test_cluster_local_has_one_node(run: Run, named_file: str) -> None:
    arguments = ("--network", "resnet18", "--calibration", named_file, "--nodes", "2", "--sub-batch", "8")
    sentence = (
        "planner: --nodes must be 1 on cluster 'local', got 2; no link between nodes is known: name it with --cluster\n"
    )
    assert run("predict", *arguments) == (5, "", sentence)


@pytest.mark.parametrize("flag", ["--cluster", "--calibration"])
def test_a_missing_network_is_named(flag: str, run: Run) -> None:
    code, out, err = run("suggest", "--target-batch", "138", flag, "tsubame-kfc")
    assert (code, out) == (2, "")
    remedy = "name a network; 'planner show networks' lists them"
    assert err == f"planner: --network must be given with {flag}, got nothing; {remedy}\n"


def test_an_unknown_name_is_reported_before_what_is_missing(run: Run) -> None:
    code, _, err = run("suggest", "--target-batch", "138", "--cluster", "tsubame-kfd")
    assert code == 2
    assert err.startswith("planner: cluster must be a known name, got 'tsubame-kfd'; did you mean 'tsubame-kfc'?")


@pytest.mark.parametrize("flag", ["--network", "--calibration"])
def test_names_in_one_list_are_answered_with_how_to_give_several(flag: str, run: Run, tmp_path: Path) -> None:
    code, out, err = run("suggest", "--target-batch", "138", flag, "resnet18, vgg")
    remedy = f"for several write {flag} resnet18 {flag} vgg"
    assert (code, out) == (2, "")
    assert err == f"planner: {flag} must be one name or file, got 'resnet18, vgg'; {remedy}\n"
    there = tmp_path / "one,two.toml"
    there.write_text("")
    assert "one name" not in run("suggest", "--target-batch", "138", flag, str(there))[2]
    assert "one name" not in run("suggest", "--target-batch", "138", flag, "resnet18:a=1,b=2")[2]


def test_planner_toml_is_found_upward_and_stands_behind_options(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = ('network = "alexnet"', 'cluster = "dgx1-v100"', "nodes = [1, 2]", "top = 2")
    (tmp_path / "planner.toml").write_text("\n".join(('format = "planner/settings"', "version = 1", *values)))
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    values = request_of(run("suggest", "--target-batch", "512", "--nodes", "1:4", "--json"))
    assert values["network"] == {"value": "alexnet", SOURCE: "planner.toml"}
    assert values["cluster"] == {"value": "dgx1-v100", SOURCE: "planner.toml"}
    assert values["top"] == {"value": 2, SOURCE: "planner.toml"}
    assert values["nodes"] == {"value": [1, 2, 3, 4], SOURCE: "option"}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('node = "2"', "did you mean 'nodes'?"),
        ('nodes = "8:1"', "nodes must be a range lo:hi with lo at most hi, got '8:1'"),
        ("nodes = -1", "nodes"),
        ('tensor = "0"', "tensor must be"),
        ("nodes = ", "line 3"),
    ],
)
def test_a_wrong_planner_toml_is_exit_3(line: str, words: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "planner.toml").write_text(f'format = "planner/settings"\nversion = 1\n{line}\n')
    code, out, err = run("suggest", "--target-batch", "138")
    assert (code, out, err.count("\n")) == (3, "", 1)
    assert words in err
    assert "planner.toml" in err


def test_settings_of_another_command_do_not_disturb(run: Run, tmp_path: Path) -> None:
    (tmp_path / "planner.toml").write_text('format = "planner/settings"\nversion = 1\ntop = 2\ntolerance = 0.1\n')
    assert run("predict", "--nodes", "8", "--sub-batch", "8", "--json")[0] == 0


def test_input_is_synthetic_where_storage_is_unknown(run: Run, named_file: str) -> None:
    arguments = ("--network", "resnet18", "--calibration", named_file, "--sub-batch", "8")
    answer = document(run("predict", *arguments, "--json"))
    assert answer["subject"]["input"] == "synthetic"
    assert [one["code"] for one in answer["warnings"]].count("input_not_modelled") == 1


def test_asking_for_storage_where_it_is_unknown_is_exit_5(run: Run, named_file: str) -> None:
    arguments = ("--network", "resnet18", "--calibration", named_file, "--sub-batch", "8", "--input", "storage")
    code, out, err = run("predict", *arguments)
    assert (code, out) == (5, "")
    assert err.startswith(
        "planner: --input must be synthetic here, got 'storage'; neither cluster 'local' nor a calibration"
    )


def test_storage_in_the_clusters_calibration_is_used(run: Run) -> None:
    answer = document(run("predict", "--nodes", "8", "--sub-batch", "8", "--json"))
    assert answer["subject"]["input"] == "storage"


def test_a_calibration_for_another_gpu_is_exit_5(run: Run, named_file: str) -> None:
    arguments = ("--network", "resnet18", "--cluster", "dgx1-v100", "--sub-batch", "8")
    rule = "--calibration must be of v100-sxm2-16gb, the device of cluster 'dgx1-v100'"
    remedy = "leave it out, or calibrate that device"
    for name, got in ((named_file, f"here of {THIS_CPU.name}"), ("tsubame-2.5", "tsubame-2.5 of k20x")):
        sentence = f"planner: {rule}, got {got}; {remedy}\n"
        assert run("predict", *arguments, "--calibration", name) == (5, "", sentence)
    both = ("--calibration", "v100-sxm2-16gb", "--calibration", "tsubame-2.5")
    code, _, err = run("predict", *arguments, *both)
    said = "--calibration tsubame-2.5 of k20x: cluster 'dgx1-v100' has v100-sxm2-16gb, so no kernel is priced by it"
    assert code == 0
    assert err.startswith(f"planner: {said}\n")
    assert run("predict", *arguments, *both[:2])[2].startswith("warning: ")


def test_a_calibration_without_the_precision_is_exit_5(run: Run, tmp_path: Path) -> None:
    accelerator = catalog.find_accelerator("v100-sxm2-16gb")
    path = tmp_path / "v100.json"
    path.write_text(CALIBRATION.dump(made_calibration("only-fp32", accelerator)))
    only = ("--calibration", str(path), "--only-calibration")
    arguments = ("--network", "resnet18", "--cluster", "dgx1-v100", "--sub-batch", "8", *only)
    assert run("predict", *arguments, "--precision", "fp32")[0] == 0
    code, out, err = run("predict", *arguments, "--precision", "fp16")
    assert (code, out) == (5, "")
    assert "fp16" in err
    assert run("suggest", *arguments[:4], *arguments[6:], "--target-batch", "64", "--precision", "fp16")[0] == 5


def test_a_precision_that_the_device_lacks_is_exit_5(run: Run) -> None:
    assert run("predict", "--nodes", "8", "--sub-batch", "8", "--precision", "fp16")[0] == 5


@pytest.mark.parametrize("arguments", [("--target-batch", "138"), ("--target-batch", "16", "--network", "resnet18")])
def test_a_broken_own_calibration_is_skipped_with_a_note(
    arguments: tuple[str, ...], run: Run, own: Calibration
) -> None:
    before = run("suggest", *arguments, "--json")
    broken = catalog.own_calibrations_folder() / "20270101T000000-broken.json"
    broken.write_text("{")
    after = run("suggest", *arguments, "--json")
    assert (own.name, after[:2]) == ("mine", before[:2])
    first, _, rest = after[2].partition("\n")
    assert first.startswith(f"planner: own calibration skipped: {broken}: line 1: text must be JSON")
    assert rest == before[2]
    assert broken.read_text() == "{"


def test_named_calibrations_go_before_bundled_ones(run: Run) -> None:
    arguments = ("--network", "sprint-15", "--cluster", "tsubame-kfc", "--target-batch", "138", "--mode", "async")
    values = request_of(run("suggest", *arguments, "--calibration", "tsubame-kfc", "--json"))
    in_order = ["tsubame-kfc", "any-steps", "node-links"]
    assert values["calibration"] == {"value": in_order, SOURCE: "option, then bundled"}
    values = request_of(run("suggest", *arguments, "--json"))
    assert values["calibration"] == {"value": in_order, SOURCE: "bundled"}


OWN_VALUES = [
    ('cluster = "dgx1-v100"', 2, "--network must be given with cluster in planner.toml, got nothing; name a network"),
    ('calibration = "tsubame-kfc"', 2, "--network must be given with calibration in planner.toml, got nothing; "),
    ('network = "alexnet"', 2, "--cluster or --calibration must be given with network in planner.toml, got nothing; "),
    ('precision = "fp16"', 5, "planner.toml: precision: precision must be one that can be priced (fp32), got 'fp16': "),
    ('scenario = "edr,foo"', 3, "planner.toml: scenario: scenario item must be fp16, edr, "),
    ('scenario = "forward*=0"', 3, "planner.toml: scenario: factor of scenario item 'forward*=0' must be a number "),
    ('cluster = "nowhere"', 3, "planner.toml: cluster: cluster must be a known name, got 'nowhere'"),
    ('network = ["resnet50", "resnet5"]', 3, "planner.toml: network: network must be a known name, got 'resnet5'"),
    ('network = "resnet50,vgg16"', 3, "got 'resnet50,vgg16'; for several write network = ['resnet50', 'vgg16']"),
    ('network = "resnet50:a=1"', 3, "planner.toml: network: argument of network resnet50 must be a known name, "),
    ('dataset = "imagenet"', 3, "planner.toml: dataset: data set must be a known name, got 'imagenet'"),
    ('calibration = "nope"', 3, "planner.toml: calibration: calibration must be a known name, got 'nope'"),
    ("nodes = 43", 3, "planner.toml: nodes: nodes must be at most 42 on cluster 'tsubame-kfc', got 43"),
    ("gpus_per_node = 9", 3, "planner.toml: gpus_per_node: gpus_per_node must be at most 8 on cluster"),
    (
        'objective = "cost"',
        3,
        "planner.toml: objective: objective must be epoch-time or gpu-hours on cluster 'tsubame-kfc', which ",
    ),
    (
        'objective = "cost:x"',
        3,
        "planner.toml: weight of cost in objective must be a number above 0, from 1e-09 to 1e+15, got 'x'; ",
    ),
    (
        'cluster = ""',
        3,
        "planner.toml: cluster: value must be text that is not empty, 0, or a number from 1e-100 to 1e+100, or a ",
    ),
]


@pytest.mark.parametrize(("line", "code", "words"), OWN_VALUES)
def test_what_planner_toml_breaks_names_it_and_the_key(
    line: str, code: int, words: str, run: Run, tmp_path: Path
) -> None:
    (tmp_path / "planner.toml").write_text(f'format = "planner/settings"\nversion = 1\n{line}\n')
    got, out, err = run("suggest", "--target-batch", "138")
    *notes, sentence = err.splitlines()
    assert (got, out) == (code, "")
    assert notes in ([], [f"planner: {line.partition(' ')[0]}: from {tmp_path / 'planner.toml'}"])
    assert words in sentence


def test_what_an_option_breaks_does_not_name_planner_toml(run: Run, tmp_path: Path) -> None:
    (tmp_path / "planner.toml").write_text('format = "planner/settings"\nversion = 1\nprecision = "fp32"\nnodes = 4\n')
    code, _, err = run("suggest", "--target-batch", "138", "--precision", "fp16")
    assert err.startswith(f"planner: nodes: from {tmp_path / 'planner.toml'}\n")
    assert (code, "\nplanner: precision must be one that can be priced" in err) == (5, True)
    code, _, err = run("suggest", "--target-batch", "138", "--nodes", "43")
    assert (code, "\nplanner: --nodes must be at most 42" in err) == (2, True)


@pytest.mark.parametrize("is_linked", [False, True])
def test_a_planner_toml_of_somebody_else_or_that_all_may_write_is_refused(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_linked: bool
) -> None:
    place = path = tmp_path / "planner.toml"
    if is_linked:
        path = tmp_path / "elsewhere.toml"
        place.symlink_to(path)
    path.write_text('format = "planner/settings"\nversion = 1\nnodes = 4\n')
    ask = ("suggest", "--target-batch", "138", "--brief")
    assert run(*ask)[0] == 0
    path.chmod(0o666)
    code, out, err = run(*ask)
    assert (code, out) == (3, "")
    assert err == (f"planner: {place}: file must not be writable by everybody, got one that is; run chmod o-w on it\n")
    path.chmod(0o664)
    assert run(*ask)[0] == 0
    owner = path.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    code, out, err = run(*ask)
    if owner:  # files of root are anybody's settings
        assert (code, out) == (3, "")
        assert f"{place}: file must belong to you, got one of user {owner}; copy it" in err
    else:
        assert code == 0
        os.chown(path, 4242, -1)
        assert run(*ask)[0] == 3
