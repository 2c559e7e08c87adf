"""Bundled records of frameworks, and those that a user's file declares."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from planner import catalog
from planner.catalog.frameworks import FOLDER
from planner.domain.calibration import Calibration, Entry
from planner.domain.configuration import Settings
from planner.domain.framework import FUSIONS, PYTORCH, STRATEGIES, Framework, Strategy, Switch, variant_and_version
from planner.errors import InputFileError, UnknownNameError, UsageError
from planner.formats.calibration import CALIBRATION
from planner.formats.framework import FRAMEWORK, framework_keys
from planner.formats.runs import read_runs
from validation.accuracy_answers import files_of_runs


def frameworks_of_runs() -> set[str]:
    """Return every framework that bundled runs name, but for runs that are not predicted yet."""
    return {one.framework for path in files_of_runs() for one in read_runs(path).rows}


def test_every_framework_of_runs_and_calibrations_has_a_record() -> None:
    calibrations = (catalog.find_calibration(name) for name in catalog.names("calibrations"))
    overheads = (entry for one in calibrations for entry in one.entries if entry.scope == "overheads")
    fitted = {variant_and_version(entry.kind)[0] for entry in overheads}
    assert {catalog.find_framework(one).variant for one in fitted} == fitted
    assert {catalog.find_framework(one).name for one in frameworks_of_runs()} <= set(catalog.names("frameworks"))
    assert {"generic", "caffe", "caffe2", "cntk", "caffe-mpi", "osu-caffe"} <= set(catalog.names("frameworks"))


@pytest.mark.parametrize("name", catalog.names("frameworks"))
def test_frameworks_are_called_as_their_files_and_say_their_source(name: str) -> None:
    found = catalog.find_framework(name)
    assert (found.name, found.label) == (name, name)
    assert found.source
    assert all(catalog.find_framework(alias) == found for alias in found.aliases)


@pytest.mark.parametrize("name", sorted({*catalog.names("frameworks")} - {"generic"}))
def test_records_state_what_frameworks_can_and_where_that_is_from(name: str) -> None:
    """A key that a file leaves out has a default, which is no fact about the framework."""
    path = FOLDER / f"{name}.toml"
    keys = tomllib.loads(path.read_text(encoding="utf-8"))
    needed = {"can", "shardings", "shardings_in_pipeline", "asynchronous", "strategy"}
    needed |= {"schedules", "stages"} if "pipeline" in keys["can"] else set()
    needed |= {"deals"} if keys.get("stages") in ("blocks", "layers") and "pipeline" in keys["can"] else set()
    assert needed <= {*keys}
    does = {*keys} - {"format", "version", "name", "aliases", "source", "sources", "switches", "versions", "strategies"}
    of_strategies = {f"strategies.{one}" for one in keys.get("strategies", {})}
    alone = {"shardings_in_pipeline"} if "pipeline" not in keys["can"] else set()
    assert does - alone <= {*keys["sources"]} <= does | of_strategies
    assert of_strategies <= {*keys["sources"]}
    assert all(one.get("source") for one in (*keys.get("switches", {}).values(), *keys.get("versions", {}).values()))
    assert "#" not in path.read_text(encoding="utf-8")


OLD = ("caffe", "caffe-mpi", "caffe2", "chainer", "cntk", "mxnet", "osu-caffe", "sprint", "tensorflow", "torch7")


@pytest.mark.parametrize("name", OLD)
def test_frameworks_that_split_nothing_are_refused_all_degrees(name: str) -> None:
    found = catalog.find_framework(name)
    assert (found.can, found.shardings, found.shardings_in_pipeline) == ((), (0,), (0,))


def test_sources_are_of_keys(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text('format = "planner/framework"\nversion = 1\nname = "own"\n[sources]\nlayout = "its manual"\n')
    found = catalog.find_framework(str(path))
    assert found.sources == {"layout": "its manual"}
    assert ("layout", "unstated", "how images lie in memory", "its manual") in framework_keys(found)
    path.write_text(path.read_text().replace("layout", "layouts"))
    with pytest.raises(InputFileError, match=r"sources\.layouts: key must be a known one, got 'layouts'; did you mean"):
        catalog.find_framework(str(path))


def test_the_source_of_a_version_is_not_that_of_the_framework() -> None:
    assert catalog.find_framework("pytorch@1.12").source == catalog.find_framework("pytorch").source
    assert catalog.find_framework("pytorch").versions["1"]["source"]


def test_no_two_frameworks_share_a_name() -> None:
    called = [one for name in catalog.names("frameworks") for one in (name, *catalog.find_framework(name).aliases)]
    assert len(called) == len(set(called))


def test_frameworks_are_found_whatever_the_case_with_their_version() -> None:
    found = catalog.find_framework("PyTorch@2.4 (CUDA 12/cuDNN 9)")
    assert (found.name, found.version, found.label) == (
        "pytorch", "2.4 (CUDA 12/cuDNN 9)", "pytorch@2.4 (CUDA 12/cuDNN 9)",
    )  # fmt: skip
    assert catalog.find_framework("TORCH").name == "pytorch"


@pytest.mark.parametrize(
    ("label", "known"),
    [("pytorch", True), ("pytorch@0.3", True), ("pytorch@1.x", True), ("pytorch@2.13.0", True),
     ("pytorch@NGC 24", True), ("pytorch@3", False), ("pytorch@99.9:compile", False), ("caffe@99.9", True)],
)  # fmt: skip
def test_a_version_beyond_those_of_the_record_and_the_one_behind_them_is_unknown(label: str, *, known: bool) -> None:
    assert catalog.find_framework(label).has_known_version == known


@pytest.mark.parametrize(
    ("label", "update"),
    [
        ("pytorch", "foreach"),
        ("pytorch@2.4 (CUDA 12)", "foreach"),
        ("pytorch@11", "foreach"),
        ("pytorch@1.12 (CUDA 11.3)", "primitive"),
        ("pytorch@1.x", "primitive"),
        ("pytorch@0.3.0", "primitive"),
        ("pytorch@NGC 24.10", "foreach"),
        ("pytorch@1.12:fused-optimizer", "list"),
        ("pytorch-channels-last@1.12", "primitive"),
    ],
)
def test_versions_do_what_their_first_numbers_say(label: str, update: str) -> None:
    assert catalog.find_framework(label).update == update


def test_the_version_with_most_numbers_decides_in_a_file_too(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    versions = {"1": {"update": "primitive"}, "1.12": {"update": "list", "layout": "nchw"}}
    path.write_text(FRAMEWORK.dump(Framework("mine", versions=versions)), encoding="utf-8")
    found = [catalog.find_framework(f"{path}@{one}") for one in ("1.1", "1.12.3", "2")]
    assert [(one.update, one.layout) for one in found] == [
        ("primitive", "unstated"), ("list", "nchw"), ("layer", "unstated"),
    ]  # fmt: skip


def test_records_say_what_frameworks_do_otherwise_than_most() -> None:
    every = {name: catalog.find_framework(name) for name in catalog.names("frameworks")}
    assert [name for name, one in every.items() if one.input_gradient] == ["torch7"]
    wide = {name for name, one in every.items() if one.gradient_bytes("fp16") == 4}
    assert wide == {"accelerate", "composer", "fsdp", "lightning", "nanotron", "pytorch", "torchtitan"}
    assert every["generic"].strategies == STRATEGIES
    assert {name: one.strategy for name, one in every.items() if one.strategy != "wait-free"} == {
        "chainer": "no-overlap", "cntk": "no-overlap", "deepspeed": "no-overlap", "megatron-deepspeed": "no-overlap",
        "megatron-lm": "no-overlap", "mxnet": "parameter-server", "nanotron": "bucketed", "paddlepaddle": "bucketed",
        "pytorch": "bucketed", "torch7": "no-overlap", "torchtitan": "bucketed",
    }  # fmt: skip
    assert every["pytorch"].strategies == {"bucketed": STRATEGIES["bucketed"]}
    assert replace(every["pytorch"], aliases=(), source="", strategies={}) == PYTORCH


@pytest.mark.parametrize(
    ("typed", "near"), [("pytroch", "pytorch"), ("tensorfow@1.2", "tensorflow"), ("mxnt", "mxnet")]
)
def test_an_unknown_framework_is_answered_with_the_nearest(typed: str, near: str) -> None:
    with pytest.raises(UnknownNameError, match=f"framework must be a known name, .* did you mean '{near}'"):
        catalog.find_framework(typed)


def test_a_file_declares_a_framework(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text('format = "planner/framework"\nversion = 1\nname = "own"\ninput_gradient = true\n')
    assert catalog.find_framework(str(path)) == Framework("own", input_gradient=True)
    with path.open("a") as file:
        file.write('gradient_type = { any = "fp32" }\n[strategies.wait-free]\nprefetch = false\nbucket_MiB = 0.5\n')
    own = Strategy(prefetch=False, bucket_bytes=2.0**19)
    found = catalog.find_framework(str(path))
    assert (found.gradient_type, found.strategies) == ({"any": "fp32"}, {"wait-free": own})
    assert Settings(framework=found).overlap == own
    path.write_text('format = "planner/framework"\nversion = 1\nname = "Own"\n')
    with pytest.raises(InputFileError, match="name must be lower-case letters"):
        catalog.find_framework(str(path))


def test_buckets_have_a_size(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text('format = "planner/framework"\nversion = 1\nname = "own"\n[strategies.bucketed]\n')
    with pytest.raises(InputFileError, match=r"bucket_MiB of strategies\.bucketed must be above 0, got 0"):
        catalog.find_framework(str(path))


def test_records_say_how_frameworks_split_networks() -> None:
    every = {name: catalog.find_framework(name) for name in catalog.names("frameworks")}
    megatron, fork = every["megatron-lm"], every["megatron-deepspeed"]
    assert catalog.find_framework("megatron") == megatron
    assert (megatron.shardings, fork.shardings, fork.shardings_in_pipeline) == ((0, 1), (0, 1, 2, 3), (0, 1))
    assert {name for name, one in every.items() if len(one.shardings) > 1 and 1 not in one.shardings} == {
        "accelerate", "composer", "fsdp", "lightning", "torchtitan",
    }  # fmt: skip
    assert {name for name, one in every.items() if "shard_group" in one.lawful} == {"nanotron"}
    assert {name for name, one in every.items() if one.schedule != "1f1b"} == {"hypar-flow"}
    assert {name for name, one in every.items() if one.overlaps_tensor} == {
        "megatron-lm", "nanotron",
    }  # fmt: skip
    assert {name for name, one in every.items() if one.pads_vocabulary} == {"megatron-deepspeed", "megatron-lm"}
    assert every["fsdp"].can == ()
    assert all(set(one.fuses) <= set(FUSIONS) for one in every.values())


@pytest.mark.parametrize(
    ("typed", "label"),
    [("fsdp2", "fsdp"), ("megatron-bridge", "megatron-lm:bridge"), ("megatron-fsdp", "megatron-lm:megatron-fsdp"),
     ("primus", "megatron-lm:primus"), ("composer", "composer"), ("llm-foundry", "composer:llm-foundry"),
     ("accelerate", "accelerate"), ("pytorch-lightning", "lightning")],
)  # fmt: skip
def test_programs_are_found_by_the_names_that_people_type(typed: str, label: str) -> None:
    assert catalog.find_framework(typed).label == label


def test_switches_change_what_is_held_sent_and_kept() -> None:
    def sizes(label: str) -> tuple[int, int]:
        found = catalog.find_framework(label)
        return found.gradient_bytes("bf16"), found.message_bytes("bf16")

    assert [sizes(one) for one in ("megatron-lm", "megatron-lm:grad-reduce-bf16")] == [(4, 4), (2, 2)]
    assert [sizes(one) for one in ("pytorch", "pytorch:compress-fp16")] == [(4, 4), (4, 2)]
    assert [sizes(one) for one in ("fsdp", "fsdp:grad-reduce-fp32", "composer")] == [(4, 2), (4, 4), (4, 4)]
    assert {
        catalog.find_framework(f"{one}:bf16-optimizer-state").state_type for one in ("megatron-lm", "torchtitan")
    } == {"bf16"}
    fused = (
        "accelerate",
        "composer",
        "deepspeed",
        "fsdp",
        "lightning",
        "pytorch",
        "torchtitan",
        "transformers-deepspeed",
    )
    assert {catalog.find_framework(f"{one}:fused-loss").loss for one in fused} == {"fused"}
    assert catalog.find_framework("megatron-fsdp").shardings == (0, 1, 2, 3)
    assert catalog.find_framework("tensorflow:compress-fp16").switched == ("horovod", "compress-fp16")


def test_a_file_states_values_that_exist(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text('format = "planner/framework"\nversion = 1\nname = "own"\nlawful = { recompute = ["some"] }\n')
    with pytest.raises(InputFileError, match=r"lawful\.recompute must be a known name, got 'some'"):
        catalog.find_framework(str(path))


def test_a_file_says_how_its_framework_splits(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    lines = ('can = ["tensor"]', "shardings = [0, 1]", 'fuses = ["residual"]', 'loss = "eager"', "gathers_ahead = 2")
    path.write_text('format = "planner/framework"\nversion = 1\nname = "own"\n' + "\n".join(lines))
    own = Framework("own", can=("tensor",), shardings=(0, 1), fuses=("residual",), loss="eager", gathers_ahead=2)
    assert catalog.find_framework(str(path)) == own
    path.write_text(path.read_text().replace('"residual"', '"gelu"'))
    with pytest.raises(InputFileError, match="gelu"):
        catalog.find_framework(str(path))


def own(*switches: tuple[str, Switch]) -> Framework:
    return Framework("own", switches=dict(switches))


def test_switches_change_a_record_and_what_was_a_record_is_a_switch() -> None:
    found = catalog.find_framework("torchtitan-async-tensor@2024-12")
    assert (found.label, found.variant) == (
        "torchtitan@2024-12:compile+async-tensor",
        "torchtitan:compile+async-tensor",
    )
    assert found == catalog.find_framework("torchtitan:async-tensor+compile@2024-12")
    plain = catalog.find_framework("torchtitan")
    assert (found.overlaps_tensor, plain.overlaps_tensor) == (True, False)
    assert (found.fuses, plain.fuses) == (("activation", "residual"), ())
    assert catalog.find_framework("pytorch-channels-last").label == "pytorch:channels-last"
    assert Framework.labelled(found.label).label == found.label


@pytest.mark.parametrize(
    ("typed", "sentence"),
    [
        ("pytorch:chanels-last", "switch of framework pytorch must be a known name, .* did you mean 'channels-last'"),
        ("fsdp:graphs", "switch of framework fsdp must be a known name"),
        ("sprint:graphs", "It has none"),
    ],
)
def test_an_unknown_switch_is_answered_with_the_nearest(typed: str, sentence: str) -> None:
    with pytest.raises(UnknownNameError, match=sentence):
        catalog.find_framework(typed)


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.toml")))
def test_switches_that_round_gradients_or_state_are_asked_for_and_never_tried(name: str) -> None:
    framework = catalog.find_framework(name)
    rounding = {one for one, switch in framework.switches.items() if switch.changes_results}
    assert all(rounding.isdisjoint(names) for names in framework.switch_sets())
    assert all(framework.with_switches([one]).switched for one in rounding)


def test_switches_need_and_exclude_others() -> None:
    framework = own(
        ("a", Switch({"fuses": ("activation",)})),
        ("b", Switch({"fuses": ("residual",), "loss": "fused"}, needs=("a",))),
        ("c", Switch({"loss": "parallel"}, excludes=("b",))),
    )
    both = framework.with_switches(["b"])
    assert (both.switched, both.fuses, both.loss) == (("a", "b"), ("activation", "residual"), "fused")
    said = r"switches c and b of framework own exclude each other, got 'a\+b\+c'; leave one of them out"
    with pytest.raises(UsageError, match=said):
        framework.with_switches(["c", "b"])
    assert list(framework.switch_sets()) == [(), ("a",), ("c",), ("a", "b"), ("a", "c")]
    assert all(framework.with_switches(names).switched == names for names in framework.switch_sets())
    with pytest.raises(UnknownNameError, match="switch must be a known name"):
        own(("a", Switch({}, needs=("none",))))


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ("[strategies.wait-free]\noverlap = false", "overlap of strategies.wait-free must be true, got 'false'; "),
        ("[strategies.no-overlap]\nprefetch = true", "overlap of strategies.no-overlap must be false, got 'true'"),
        ("[switches.a.strategies.no-overlap]\n", "overlap of strategies.no-overlap must be false"),
        ("[switches.a.strategies.bucketed]\n", "bucket_MiB of strategies.bucketed must be above 0"),
        (
            '[switches.a]\nexcludes = ["b"]\n[switches.b]\n[switches.c]\nneeds = ["a", "b"]',
            "needs of switches.c must be switches that can be on together with it, got 'a, b'; one of them excludes",
        ),
        ('[switches.a]\n[switches.b]\nneeds = ["a"]\nexcludes = ["a"]', "needs of switches.b must be switches"),
    ],
)
def test_a_file_must_not_contradict_itself(tmp_path: Path, keys: str, sentence: str) -> None:
    path = tmp_path / "own.toml"
    path.write_text(f'format = "planner/framework"\nversion = 1\nname = "own"\n{keys}\n')
    with pytest.raises(InputFileError, match=sentence):
        catalog.find_framework(str(path))


def test_own_aliases_are_names_and_those_of_bundled_frameworks_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    folder = tmp_path / "planner" / "frameworks"
    folder.mkdir(parents=True)
    wide = Switch({"gradient_type": {"any": "fp32"}}, aliases=("wider", "tf"))
    mine = Framework("mine", aliases=("torch", "my"), switches={"wide": wide})
    (folder / "mine.toml").write_text(FRAMEWORK.dump(mine))
    (folder / "pytorch.toml").write_text(FRAMEWORK.dump(Framework("pytorch")))
    assert catalog.find_framework("My") == mine
    assert catalog.find_framework("wider").label == "mine:wide"
    assert catalog.find_framework("torch") == catalog.find_framework("pytorch")
    assert catalog.find_framework("pytorch").strategy == "bucketed"
    why = "is not used: a bundled framework has that name; rename it"
    assert catalog.unused_own_names() == (
        f"own framework pytorch.toml {why}",
        f"alias 'torch' of own framework mine {why}",
        f"alias 'tf' of own framework mine {why}",
    )


def test_own_frameworks_lie_in_the_users_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    folder = tmp_path / "planner" / "frameworks"
    folder.mkdir(parents=True)
    mine = Framework("mine", fuses=("residual",), switches={"wide": Switch({"gradient_type": {"any": "fp32"}})})
    (folder / "mine.toml").write_text(FRAMEWORK.dump(mine))
    (folder / "wrong.toml").write_text(FRAMEWORK.dump(mine).replace("fuses", "fusses"))
    found = catalog.find_framework("mine:wide")
    assert (found.label, found.gradient_type, found.fuses) == ("mine:wide", {"any": "fp32"}, ("residual",))
    skipped: list[InputFileError] = []
    assert catalog.own_frameworks(skipped.append) == (mine,)
    assert [one.where for one in skipped] == ["fusses"]
    with pytest.raises(InputFileError, match="did you mean 'fuses'"):
        catalog.find_framework("wrong")
    (folder / "other.toml").write_text(FRAMEWORK.dump(mine))
    with pytest.raises(InputFileError, match="name: value must be 'other', as the file is called, got 'mine'"):
        catalog.find_framework("other")


def test_calibrations_that_name_a_framework_of_before_are_of_its_switch(tmp_path: Path) -> None:
    of_switch = Entry("overheads", "pytorch:channels-last", "", "", "", "overheads", {}, {"kernel_scale": 1.1})
    one = Calibration("mine", "rtx-3090", (of_switch,))
    text = CALIBRATION.dump(one)
    (tmp_path / "mine.json").write_text(text.replace("pytorch:channels-last", "pytorch-channels-last"))
    assert catalog.find_calibration(str(tmp_path / "mine.json")).entries == one.entries
