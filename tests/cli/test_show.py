"""``planner show``: listings and single things, as tables and documents."""

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from planner import catalog
from planner.domain.calibration import MeasuredStep
from planner.domain.configuration import Configuration
from planner.domain.samples import BUDGET, COMMAND, NETWORKS
from planner.formats.calibration import CALIBRATION
from planner.formats.network import NAMES
from planner.formats.schemas import KINDS

WHAT = ("networks", "clusters", "calibrations", "datasets", "accelerators", "frameworks")
TO_BE_PASTED = ("  planner ", "  python ")
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def texts() -> dict[tuple[str, str], str]:
    """Return what was shown of bundled things: laying out the tables of a calibration takes most of a test."""
    return {}


@pytest.fixture
def shown(run: Run, texts: dict[tuple[str, str], str]) -> Callable[[str, str], str]:
    """Return a function: what, name -> the text that shows it."""

    def call(what: str, name: str) -> str:
        if (what, name) not in texts:
            code, texts[what, name], _ = run("show", what, name)
            assert code == 0
        return texts[what, name]

    return call


@pytest.mark.parametrize("what", WHAT)
def test_every_bundled_thing_is_listed_and_shown(what: str, run: Run, shown: Callable[[str, str], str]) -> None:
    code, out, err = run("show", what)
    assert (code, err) == (0, "")
    assert catalog.names(what)
    assert max(map(len, out.splitlines())) <= 80
    for name in catalog.names(what):
        assert name in "".join(line.split("  ")[0] for line in out.splitlines())  # a long one goes on in the next line
    for name in catalog.names(what)[:: 3 if what in ("networks", "clusters") else 1]:
        one = shown(what, name)
        assert one.startswith(name)
        assert max(len(line) for line in one.splitlines() if not line.startswith(TO_BE_PASTED)) <= 80
    listed = NAMES.parse(run("show", what, "--json")[1], "stdout")
    assert listed == {what: catalog.names(what)}


def test_resnet50_shows_layers_shapes_parameters_and_flop(run: Run) -> None:
    lines = [" ".join(line.split()) for line in run("show", "networks", "resnet50")[1].splitlines()]
    # He et al. 2016: 7x7 convolution to 64 channels, 25.56 million parameters with their biases.
    assert "conv1 convolution 64 x 112 x 112 9,408 236,027,904" in lines
    assert "parameters 25,557,032" in lines


@pytest.mark.parametrize("what", WHAT)
def test_one_thing_as_a_document_reads_back(what: str, run: Run) -> None:
    for name in catalog.names(what)[:: 4 if what in ("networks", "clusters", "calibrations") else 1]:
        document = json.loads(run("show", what, name, "--json")[1])
        kind = "network-work" if what == "networks" else what[:-1]
        assert (document["format"], document["name"]) == (f"planner/{kind}", name)
        assert KINDS[kind].build(document, "stdout")


@pytest.mark.parametrize(
    ("what", "name", "near"), [("networks", "resnet51", "resnet50"), ("clusters", "tsubame-kf", "tsubame-kfc")]
)
def test_an_unknown_name_offers_the_nearest(what: str, name: str, near: str, run: Run) -> None:
    code, out, err = run("show", what, name)
    assert (code, out) == (2, "")
    assert err.startswith(f"planner: {what[:-1]} must be a known name, got {name!r}; did you mean {near!r}?")


def test_what_to_show_is_needed(run: Run) -> None:
    assert run("show") == (
        2,
        "",
        f"planner: what to show must be one of {', '.join(WHAT)}, got nothing\n",
    )


@pytest.mark.parametrize(
    ("what", "name", "find"),
    [
        ("networks", "resnet18", catalog.find_network),
        ("networks", "resnet50:stride=1x1", catalog.find_network),
        ("clusters", "ec2-p2-8xlarge", catalog.find_cluster),
        ("clusters", "grand-teton-h100-500w", catalog.find_cluster),
        ("datasets", "imagenet-1k", catalog.find_dataset),
    ],
)
def test_toml_is_a_file_that_reads_back(
    what: str, name: str, find: Callable[[str], object], run: Run, tmp_path: Path
) -> None:
    code, out, err = run("show", what, name, "--toml")
    assert (code, err) == (0, "")
    path = tmp_path / "mine.toml"
    path.write_text(out)
    assert find(str(path)) == find(name)
    assert run("show", what, str(path), "--toml") == (0, out, "")


def test_a_network_written_as_toml_predicts_the_same(run: Run) -> None:
    Path("mine.toml").write_text(run("show", "networks", "resnet18", "--toml")[1])
    arguments = ("--cluster", "dgx1-v100", "--sub-batch", "8", "--json")
    own, bundled = (json.loads(run("predict", "--network", name, *arguments)[1]) for name in ("mine.toml", "resnet18"))
    assert own["subject"].pop("network_option") == "mine.toml"  # by which verify finds it again
    assert own == bundled


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ("calibrations", "tsubame-kfc"),
            "--toml must be used with networks, clusters, datasets or frameworks, got 'calibrations'",
        ),
        (
            ("networks",),
            "--toml must be used with one of the networks, got nothing; 'planner show networks' lists them",
        ),
        (("networks", "resnet18", "--json"), "--toml must be given without --json, got 'both'"),
    ],
)
def test_toml_is_of_one_thing_that_people_write(arguments: tuple[str, ...], sentence: str, run: Run) -> None:
    code, out, err = run("show", *arguments, "--toml")
    assert (code, err) == (2, f"planner: {sentence}\n")
    assert (json.loads(out)["format"] == "planner/error") if "--json" in arguments else not out


def test_own_calibrations_are_listed_and_shown(run: Run) -> None:
    folder = catalog.own_calibrations_folder()
    folder.mkdir(parents=True)
    mine = replace(catalog.find_calibration("tsubame-2.5"), name="mine", origin="measured")
    for stamp, one in (("20260101", mine), ("20260102", replace(mine, date="2026-01-02"))):
        (folder / f"{stamp}T000000-mine.json").write_text(CALIBRATION.dump(one))
    (folder / "20260103T000000-cut.json").write_text("{")
    code, out, err = run("show", "calibrations")
    assert code == 0
    assert err.startswith("planner: own calibration skipped: ")
    rows = [line.split() for line in out.splitlines() if line.startswith("mine ")]
    assert [row[:4] for row in rows] == [["mine", "tsubame-2.5", "measured,", "own"]]
    listed = NAMES.parse(run("show", "calibrations", "--json")[1], "stdout")
    assert listed == {"calibrations": catalog.names("calibrations"), "own": ("mine",)}
    code, out, _ = run("show", "calibrations", "mine")
    assert (code, out.splitlines()[0]) == (0, "mine")
    assert "2026-01-02" in out


def test_measured_runs_of_plans_are_shown_by_network(run: Run) -> None:
    runs = MeasuredStep("vgg16", "", "pytorch", Configuration(1, 1, 4), 1.05664, 2, "passes")
    own = replace(catalog.find_calibration("tsubame-2.5"), name="own", entries=(), measured_steps=(runs,))
    Path("own.json").write_text(CALIBRATION.dump(own), encoding="utf-8")
    code, text, _ = run("show", "calibrations", "own.json")
    row = ["vgg16", "-", "pytorch", "passes", "sub-batch", "4,", "fp32", "2", "1.057"]
    assert (code, row in [line.split() for line in text.splitlines()]) == (0, True)


def test_a_calibration_of_kernels_says_what_to_measure_next(run: Run) -> None:
    text = run("show", "calibrations", "v100-sxm2-16gb")[1]
    table = text[text.index("What to measure next") :]
    assert "resnet50" in table
    assert table.splitlines()[-1].startswith("  planner calibrate --device cuda --network ")
    assert "What to measure next" not in run("show", "calibrations", "any-steps")[1]


@pytest.mark.parametrize(
    ("made_for", "wanted"),
    [
        ("mlp:hidden=512", ["mlp:hidden=512"]),
        ("vgg16; mobilenet-v2; vgg16", ["mobilenet-v2", "vgg16"]),
        ("a-file-of-once; vgg16", ["vgg16"]),
        ("a-file-of-once", ["gpt", "resnet50"]),
        ("", ["gpt", "resnet50"]),
    ],
)
def test_what_to_measure_next_is_of_the_networks_that_a_calibration_was_made_for(
    made_for: str, wanted: list[str], run: Run
) -> None:
    """What is not known here, as a network of a file, is passed over; of none, networks of the usual kernels."""
    whole = catalog.find_calibration("cpu-epyc-example")
    own = replace(whole, name="own", environment={**whole.environment, NETWORKS: made_for})
    Path("own.json").write_text(CALIBRATION.dump(own), encoding="utf-8")
    code, text, _ = run("show", "calibrations", "own.json")
    command, _, budget = text.splitlines()[-1].partition(" --budget ")
    words = command.split()
    assert (code, words[:4]) == (0, ["planner", "calibrate", "--device", "cpu"])
    assert sorted(words[5::2]) == wanted
    # What was made for them needs more time than it had, the default where that is not told.
    assert budget == ("120s" if set(wanted) & set(made_for.split("; ")) else "")
    table = text[text.index("What to measure next") :]
    assert all(name in "".join(table.split()) for name in wanted)


@pytest.mark.parametrize(("had", "wanted"), [("5", "60s"), ("60", "120s"), ("40; 300", "600s")])
def test_measuring_again_is_to_have_twice_the_time_or_the_default(had: str, wanted: str, run: Run) -> None:
    whole = catalog.find_calibration("cpu-epyc-example")
    own = replace(whole, name="own", environment={**whole.environment, NETWORKS: "vgg16", BUDGET: had})
    Path("own.json").write_text(CALIBRATION.dump(own), encoding="utf-8")
    assert run("show", "calibrations", "own.json")[1].endswith(f" --network vgg16 --budget {wanted}\n")


@pytest.mark.parametrize("name", sorted({*catalog.names("accelerators")} & {*catalog.names("calibrations")}))
def test_calibrations_of_gpus_say_where_they_are_from_and_how_good_they_are(
    name: str, shown: Callable[[str, str], str]
) -> None:
    """Published times come with the licence of their tables, and every kernel with its error on rows left out."""
    calibration = catalog.find_calibration(name)
    assert calibration.accelerator == name
    words = " ".join(shown("calibrations", name).split())
    assert "origin published source" in words
    kernels = [entry for entry in calibration.entries if entry.scope == "kernels"]
    assert {"gemm"} <= {entry.kind for entry in kernels}
    assert all(re.search("(Apache-2.0|BSD-3-Clause|MIT)", part) for part in calibration.source.split("; "))
    assert all(entry.held_out_error is not None for entry in kernels)
    assert words.count(" held-out error ") == len(kernels)
    assert words.count(", worst ") == len(kernels)


@pytest.mark.parametrize("name", catalog.names("calibrations"))
def test_every_bundled_calibration_says_what_makes_it_again(name: str, shown: Callable[[str, str], str]) -> None:
    """Its commands are of modules that there are, and those that name a calibration name this one."""
    command, text = catalog.find_calibration(name).environment[COMMAND], shown("calibrations", name)
    words = text.split()
    at = words.index("command")
    assert words[at + 1 : at + 1 + len(command.split())] == command.split()
    assert " ".join(words).count(command) == 1
    assert f"  {command}\n" in text  # to be pasted whole
    for one in command.split(" && "):
        program, *rest = shlex.split(one)
        if program == "python":
            assert find_spec(rest[1]) is not None
        else:
            assert (program, rest[0]) == ("planner", "calibrate")
            options = dict(zip(rest[1::2], rest[2::2], strict=False))
            assert (options["--name"], options["--out"]) == (name, f"calibrations/{name}.json")
            assert Path(options["--samples"]).name == name


def test_coefficients_have_units(run: Run) -> None:
    words = " ".join(run("show", "calibrations", "tsubame-kfc")[1].split())
    assert "A coefficient is in seconds per unit of its feature (calls: s, flop: s/FLOP, bytes: s/byte)" in words


def test_switches_of_frameworks_are_not_broken(run: Run) -> None:
    code, out, _ = run("show", "frameworks")
    assert code == 0
    for name in catalog.names("frameworks"):
        for switch in catalog.find_framework(name).switches:
            assert switch in out


SINFO = """\
NODELIST            NODES  PARTITION  STATE  CPUS  MEMORY  GRES
gpu[001-004]        4      train      idle   64    515000  gpu:a100:4
gpu[005-006]        2      train      mix    128   1031000 gpu:a100:8
"""


def test_a_table_of_slurm_becomes_a_cluster_file_with_questions(run: Run) -> None:
    Path("sinfo.txt").write_text(SINFO)
    code, out, err = run("suggest", "--network", "resnet50", "--cluster", "sinfo.txt", "--target-batch", "256")
    assert (code, out) == (3, "")
    assert "got 4 x 4 a100 and 2 x 8 a100; 'planner show clusters --detect --from sinfo.txt > mine.toml' writes" in err
    for what in ("cluster", "clusters"):
        code, out, err = run("show", what, "--detect", "--from", "sinfo.txt")
        assert (code, out.count("[[node_groups]]"), out.count("# gpu = ?")) == (0, 2, 2)
        assert err.startswith("planner: 12 questions to answer in it: node_groups.gpu, ")
    assert run("show", "clusters", "--detect", "--from", "sinfo.txt", "--json")[0] == 2
    assert run("show", "networks", "--detect")[0] == 2
    code, _, err = run("show", "clusters", "--from", "sinfo.txt")
    assert (code, err) == (2, "planner: --from must be used with --detect, got nothing; add --detect\n")


def test_a_machine_without_gpus_becomes_the_file_of_a_node_of_one_cpu(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    code, out, err = run("show", "cluster", "--detect")
    assert (code, err) == (0, "planner: 1 question to answer in it: node.gpu\n")
    assert "\nnodes = 1 " in out
    assert "\ngpus = 1 " in out
    assert re.search(r"\nhost_memory_GiB = [\d.]+ +# /proc/meminfo\n", out)
