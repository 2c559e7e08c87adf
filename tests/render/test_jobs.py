"""Job files: every value of a plan is told or refused by name, and text of the user is text."""

from __future__ import annotations

import json
import random
import shlex
import shutil
import subprocess
import sys
import tomllib
import types
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from planner import catalog
from planner.cli.options import OPTIONS
from planner.domain.axes import AXES
from planner.domain.cluster import GroupPart
from planner.domain.configuration import Configuration, Configurations, Settings
from planner.domain.framework import Framework
from planner.domain.job import PlanToStart, job_of
from planner.domain.prediction import LayersOfStage, Quantity
from planner.domain.request import Subject
from planner.errors import ParameterError
from planner.render.jobs import TARGETS, Task, render
from planner.workload.lawful import is_lawful, most_stages

FRAMEWORKS = tuple(catalog.find_framework(name) for name in catalog.names("frameworks"))
STAGES = (LayersOfStage(3), LayersOfStage(2), LayersOfStage(3, 1, "full"), LayersOfStage(0))
HOUR = Quantity(3600.0, 3000.0, 5400.0)


def plan_of(framework: Framework, one: Configuration, **values: Any) -> PlanToStart:
    shared = Subject("net", "cluster", settings=Settings("adam", framework.strategy, framework=framework))
    stages = STAGES[: one.pipeline_parallel] if one.stages == "best" else ()
    return PlanToStart(1, values.pop("subject", shared), one, Quantity(1.5), stage_layers=stages, **values)


def file_of(target: str, plan: PlanToStart, program: str = "", name: str = "net") -> str:
    task = Task(plan, job_of(plan, shlex.split(program)), "words", name, "image")
    return render(target, task)


def targets_of(framework: Framework) -> list[str]:
    return [name for name in TARGETS if name in ("torchrun", "slurm", framework.target)]


CHUNKS = {"1f1b": (1, 2, 4), "interleaved": (2, 4), "zero-bubble-v": (2,)}
"""Schedule -> chunks of a stage that it takes; others: one."""


def drawn(framework: Framework, dice: random.Random) -> Configuration:
    """Return a plan such as the record of a framework allows."""

    def some(values: Any) -> Any:
        return dice.choice(tuple(values))

    def degree(name: str) -> int:
        return some((1, 1, 1, 2, 4)) if name in framework.can else 1

    words = {axis.name: framework.lawful.get(axis.name, axis.words) for axis in AXES}
    stages, schedule = degree("pipeline"), some(framework.schedules)
    return Configuration(
        some((8, 16)), 8, some((1, 3)), some((8, 16)), some(("fp32", "tf32", "fp16", "bf16")),
        tensor_parallel=degree("tensor"), context_parallel=degree("context"), expert_parallel=degree("expert"),
        pipeline_parallel=stages, sequence_parallel=some(words["sequence_parallel"]),
        schedule=schedule, virtual_stages=some(CHUNKS.get(schedule, (1,))),
        sharding=some(framework.shardings if stages == 1 else framework.shardings_in_pipeline),
        shard_group=some(words["shard_group"]), recompute=some(set(words["recompute"]) - {"per-stage"}),
        offload=some(("none", *words["offload"])),
    )  # fmt: skip


def neighbours(one: Configuration) -> Iterator[tuple[str, Configuration]]:
    """Yield plans that differ in one axis, and its name."""
    for axis in AXES:
        others = axis.words or (range(axis.most + 1) if axis.most else (1, 2, 4))
        for value in others if axis.name not in ("nodes", "gpus_per_node", "mode", "precision") else ():
            with suppress(ParameterError):  # no such plan
                changes: dict[str, Any] = {axis.name: value}
                other = replace(one, **changes)
                if getattr(other, axis.name) == value and passes(other) not in (passes(one), None):
                    yield axis.name, other


def passes(one: Configuration) -> Configuration | None:
    """Return the plan with the schedule that runs, 1f1b of several chunks being interleaved; None: none does."""
    if one.virtual_stages not in CHUNKS.get(one.schedule, (1,)):
        return None
    return replace(one, schedule="interleaved") if one.virtual_stages > 1 and one.schedule == "1f1b" else one


def said(target: str, plan: PlanToStart) -> str:
    try:
        return file_of(target, plan)
    except ParameterError as error:
        return f"refused: {error}"


@pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda one: one.name)
def test_plans_that_differ_have_files_that_differ_or_are_refused_by_name(framework: Framework) -> None:
    """Whatever axis they differ in; so no value is left out. Some plan is not refused."""
    dice, written = random.Random(7), 0  # noqa: S311 - samples
    for one in (Configuration(8, 8, 1, 4, "bf16"), *(drawn(framework, dice) for _ in range(3))):
        for target in targets_of(framework):
            text = said(target, plan_of(framework, one))
            written += not text.startswith("refused")
            for name, other in neighbours(one):
                of_other = said(target, plan_of(framework, other))
                if of_other.startswith("refused"):
                    assert any(f"got '{words}'" in of_other for words in (*other.besides, f"precision {one.precision}"))
                else:
                    assert of_other != text, name
    assert written


NETWORKS = tuple(
    catalog.find_network(f"{name}:layers={layers},hidden=512,heads=16,ffn=1024,sequence=96{more}")
    for name, more in (("llama", ",kv_heads=8"), ("moe", ",kv_heads=8,experts=8"))
    for layers in (16, 30, 80)
)


@pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda one: one.name)
def test_a_plan_that_a_framework_starts_has_a_flag_for_each_of_its_values(framework: Framework) -> None:
    """Lawful plans of whole stages, of as many chunks as may be, are told in full."""
    dice, told = random.Random(3), 0  # noqa: S311 - samples
    for network, _ in product(NETWORKS, range(25)):
        # What is searched unless it is asked for by name.
        one = replace(drawn(framework, dice), precision="bf16", offload="none", shard_group="all")
        if one.pipeline_parallel > 1 and one.schedule in ("1f1b", "interleaved"):
            one = replace(one, virtual_stages=dice.choice((1, 2, 4, 5, 8, 10)))
        if not is_lawful(network, framework, Configurations.of([one])):
            continue
        shared = Subject(
            "net", "cluster", settings=plan_of(framework, one).subject.settings, layers=most_stages(network)
        )
        assert job_of(plan_of(framework, one, subject=shared)).untold == (), one
        told += 1
    assert told > 5


MEGATRON = catalog.find_framework("megatron")


def test_flags_of_megatron() -> None:
    one = Configuration(
        8, 8, 1, 16, "bf16", tensor_parallel=4, sequence_parallel="on", pipeline_parallel=4, virtual_stages=2,
        sharding=1, shard_group="node", recompute="full", recompute_every=2,
    )  # fmt: skip
    fast = Settings("adam", "wait-free", framework=MEGATRON.with_switches(["flash-attention"]))
    job = job_of(plan_of(MEGATRON, one, subject=Subject("net", "cluster", settings=fast)))
    assert " ".join(job.arguments) == (
        "--micro-batch-size 1 --global-batch-size 64 --bf16 --tensor-model-parallel-size 4 --sequence-parallel "
        "--pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 2 --use-distributed-optimizer "
        "--num-distributed-optimizer-instances 2 --recompute-granularity full --recompute-method uniform "
        "--recompute-num-layers 2 --overlap-grad-reduce --overlap-param-gather --attention-backend flash "
        "--optimizer adam"
    )
    assert job.variables == {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}


def test_stages_that_layers_do_not_fill_are_a_layout_or_so_many_layers() -> None:
    settings = Settings("adam", "no-overlap", framework=MEGATRON)
    shared = Subject("net", "cluster", settings=settings, layers=30)
    for chunks, layout in ((1, "Et*7|t*8|t*8|t*7L"), (2, "Et*3|t*4|t*4|t*4|t*4|t*4|t*4|t*3L")):
        one = Configuration(4, 8, 1, 16, "bf16", pipeline_parallel=4, virtual_stages=chunks)
        arguments = job_of(plan_of(MEGATRON, one, subject=shared)).arguments
        assert arguments[arguments.index("--pipeline-model-parallel-layout") + 1] == layout
        assert "--num-virtual-stages-per-pipeline-rank" not in arguments
    titan = catalog.find_framework("torchtitan")
    one = Configuration(4, 8, 1, 16, "bf16", pipeline_parallel=4, virtual_stages=4)
    text = said(
        "torchtitan",
        plan_of(
            titan, one, subject=Subject("net", "c", settings=Settings("adam", "bucketed", framework=titan), layers=30)
        ),
    )
    assert "--parallelism.pipeline_parallel_layers_per_stage 2" in text


def test_the_order_of_a_record_is_of_no_use() -> None:
    """As files that planner itself writes are sorted."""
    dice = random.Random(5)  # noqa: S311 - samples
    for name in ("megatron", "torchtitan", "accelerate"):
        framework = catalog.find_framework(name)
        turned = replace(framework, writes=dict(list(framework.writes.items())[::-1]))
        for one in [drawn(framework, dice) for _ in range(5)]:
            assert said("torchrun", plan_of(framework, one)) == said("torchrun", plan_of(turned, one))


def test_stages_that_are_chosen_are_a_layout() -> None:
    one = Configuration(4, 8, 1, 16, "bf16", pipeline_parallel=4, stages="best")
    assert "--pipeline-model-parallel-layout 'Et*3|t*2|t*3|L'" in file_of("torchrun", plan_of(MEGATRON, one))


def test_keys_of_deepspeed() -> None:
    one = Configuration(2, 8, 4, 2, "bf16", tensor_parallel=2, sharding=3, shard_group="node", offload="optimizer")
    assert json.loads(file_of("deepspeed", plan_of(catalog.find_framework("deepspeed"), one))) == {
        "bf16": {"enabled": True},
        "gradient_accumulation_steps": 2,
        "tensor_parallel": {"autotp_size": 2},
        "train_micro_batch_size_per_gpu": 4,
        "zero_optimization": {
            "mics_shard_size": 4, "offload_optimizer": {"device": "cpu", "pin_memory": True}, "stage": 3,
        },
    }  # fmt: skip


def test_keys_of_accelerate() -> None:
    """Degrees of the mesh multiply to the processes of all nodes."""
    framework = catalog.find_framework("accelerate:compile")
    one = Configuration(2, 8, 4, 2, "bf16", tensor_parallel=2, sharding=3, shard_group="node", recompute="full")
    assert yaml.safe_load(file_of("accelerate", plan_of(framework, one))) == {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP",
        "dynamo_config": {"dynamo_backend": "INDUCTOR"},
        "fsdp_config": {
            "fsdp_activation_checkpointing": True, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_reshard_after_forward": True, "fsdp_version": 2,
        },
        "main_training_function": "main",
        "mixed_precision": "bf16",
        "num_machines": 2,
        "num_processes": 16,
        "parallelism_config": {
            "parallelism_config_dp_replicate_size": 2, "parallelism_config_dp_shard_size": 4,
            "parallelism_config_tp_size": 2,
        },
        "use_cpu": False,
    }  # fmt: skip


def documents(text: str) -> list[Any]:
    return list(yaml.safe_load_all(text))


@pytest.mark.parametrize("name", ["megatron", "torchtitan", "deepspeed", "accelerate", "composer", "fsdp"])
def test_kubernetes_takes_the_job(name: str) -> None:
    framework = catalog.find_framework(name)
    for nodes in (1, 4):
        plan = plan_of(framework, Configuration(nodes, 8, 4, 1, "bf16", sharding=0), training_s=HOUR)
        made = documents(file_of("kubernetes", plan, name="My network, v2!"))
        for document in made:
            kubernetes_validate.validate(document, "1.37", strict=True)
        *service, job = made
        assert len(service) == (nodes > 1)
        assert job["metadata"]["name"] == "my-network-v2"
        assert job["spec"]["completions"] == job["spec"]["parallelism"] == nodes
        assert job["spec"]["activeDeadlineSeconds"] == 6000
        assert job["spec"]["template"]["spec"]["containers"][0]["resources"] == {"limits": {"nvidia.com/gpu": 8}}


def test_the_time_limit_is_the_upper_end_and_a_start() -> None:
    one = Configuration(2, 8, 4)
    framework = catalog.find_framework("fsdp")
    for training, time in (
        (HOUR, "0-01:40:00"),
        (Quantity(3600.0), "0-01:40:00"),
        (Quantity(86400.0 * 2), "3-00:10:00"),
    ):
        assert f"#SBATCH --time={time}\n" in file_of("slurm", plan_of(framework, one, training_s=training))
    assert "--time" not in file_of("slurm", plan_of(framework, one))


def test_cpus_are_no_gpus() -> None:
    framework = catalog.find_framework("pytorch")
    shared = Subject("net", "cluster", settings=Settings(framework=framework, strategy="bucketed"), device="CPU")
    plan = plan_of(framework, Configuration(2, 4, 8), subject=shared)
    assert "gpu" not in file_of("slurm", plan)
    assert "nvidia" not in file_of("kubernetes", plan)
    assert "use_gpu=False" in file_of("ray", plan)


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=12)


@given(TEXT, TEXT)
@settings(max_examples=10)
def test_text_of_the_user_is_text(word: str, name: str) -> None:
    """What a name or a word of the program holds is never a command, an option of Slurm or a key of YAML."""
    framework = catalog.find_framework("fsdp")
    shared = Subject(name, name, settings=Settings("adam", framework.strategy, framework=framework))
    plan = plan_of(framework, Configuration(2, 8, 4, 1, "bf16"), subject=shared)
    program = shlex.join(["x.py", word])
    slurm, cloud = (file_of(target, plan, program, name) for target in ("slurm", "kubernetes"))
    words = shlex.split(slurm, comments=True)
    assert words[words.index("x.py") + 1] == word
    assert sum(line.startswith("#SBATCH") for line in slurm.splitlines()) == 5
    job = documents(cloud)[1]
    kubernetes_validate.validate(job, "1.37", strict=True)
    command = job["spec"]["template"]["spec"]["containers"][0]["command"]
    words = shlex.split(command[4])
    assert words[words.index("x.py") + 1] == word
    compile(file_of("ray", plan, program, name), "job.py", "exec")


def test_a_shell_gives_the_program_its_words(tmp_path: Path) -> None:
    printed = tmp_path / "torchrun"
    printed.write_text(f"#!{sys.executable}\nimport json, os, sys\nprint(json.dumps([sys.argv, dict(os.environ)]))\n")
    printed.chmod(0o755)
    odd = f"a'b\"c $(echo no) `no` \\ * \n # {{file}} {'-x ' * 60}"
    plan = plan_of(catalog.find_framework("deepspeed"), Configuration(1, 8, 4, 1, "bf16", sharding=2))
    text = file_of("torchrun", plan, shlex.join(["my train.py", odd]))
    done = subprocess.run(
        [str(shutil.which("bash")), "-c", text, "job", "--more", odd],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    argv, environment = json.loads(done.stdout)
    assert argv[1:6] == ["--standalone", "--nproc-per-node", "8", "my train.py", odd]
    assert argv[6] == "--deepspeed_config"
    assert json.loads(Path(argv[7]).read_text())["zero_optimization"] == {"stage": 2}
    assert argv[8:] == ["--more", odd]
    assert environment["PLAN_SHARDING"] == "2"


def test_ray_starts_the_program_with_the_plan_in_every_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "program.py"
    program.write_text("import os, sys\nsys.modules['told'].it = [sys.argv, os.environ['PLAN_PRECISION']]\n")
    told: Any = types.ModuleType("told")
    train: Any = types.ModuleType("ray.train")
    train.ScalingConfig = lambda **values: values
    torch: Any = types.ModuleType("ray.train.torch")

    def trainer(start: Any, scaling_config: Any) -> Any:
        told.scaling = scaling_config
        return types.SimpleNamespace(fit=start)

    torch.TorchTrainer = trainer
    for name, module in {
        "told": told,
        "ray": types.ModuleType("ray"),
        "ray.train": train,
        "ray.train.torch": torch,
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setenv("PLAN_PRECISION", "")
    monkeypatch.setattr(sys, "argv", ["job.py"])
    plan = plan_of(catalog.find_framework("deepspeed"), Configuration(2, 8, 4, 1, "bf16"))
    text = file_of("ray", plan, shlex.join([str(program), "--data", "a b"]))
    exec(compile(text, "job.py", "exec"), {"__name__": "__main__"})  # noqa: S102 - it was just written here
    assert told.scaling == {"num_workers": 16, "use_gpu": True, "placement_strategy": "PACK"}
    argv, precision = told.it
    assert (argv[1:4], precision) == (["--data", "a b", "--deepspeed_config"], "bf16")
    assert json.loads(Path(argv[4]).read_text())["bf16"] == {"enabled": True}


NO_FLAG = "the plan must be of values that {} has a flag or key for, got '{}'; take another plan, by --plan"
OTHER_TARGET = ", or --to torchrun or slurm or kubernetes or ray, which tells the program all of it"
WRONG_TARGET = (
    "--to of a plan in fsdp must be a target of its framework, torchrun, slurm, kubernetes, ray, got 'megatron'"
)
NOT_STARTED = "--to kubernetes must be of a plan that torchrun or accelerate or composer starts, got 'mpirun'"


@pytest.mark.parametrize(
    ("name", "target", "changes", "sentence"),
    [
        ("fsdp", "megatron", {}, WRONG_TARGET),
        ("mxnet", "kubernetes", {}, NOT_STARTED),
        ("megatron", "slurm", {"offload": "activations"}, NO_FLAG.format("megatron-lm", "offload activations")),
        ("megatron:bridge", "slurm", {}, NO_FLAG.format("megatron-lm:bridge", "switch bridge")),
        (
            "deepspeed",
            "deepspeed",
            {"pipeline_parallel": 2},
            NO_FLAG.format("the file of deepspeed", "pipeline 2") + OTHER_TARGET,
        ),
        ("accelerate", "slurm", {"tensor_parallel": 2}, NO_FLAG.format("accelerate", "tensor 2")),
    ],
)
def test_what_a_target_cannot_say_is_named(name: str, target: str, changes: dict[str, Any], sentence: str) -> None:
    one = Configuration(2, 8, 4, 1, "bf16", **changes)
    with pytest.raises(ParameterError) as error:
        file_of(target, plan_of(catalog.find_framework(name), one))
    assert str(error.value) == sentence


def test_plans_across_node_groups_have_no_file() -> None:
    parts = (GroupPart("old", 2, 4, 8), GroupPart("new", 1, 8, 16))
    with pytest.raises(ParameterError, match=r"^the plan must be of equal nodes, got"):
        file_of("slurm", plan_of(catalog.find_framework("pytorch"), Configuration.across(parts, "fp32")))


KNOWN = tomllib.loads((Path(__file__).parent.parent / "data" / "targets.toml").read_text())
"""Target -> flags and keys that its program declares."""


def flat(keys: Any, before: str = "") -> Iterator[str]:
    for key, value in keys.items():
        yield from flat(value, f"{before}{key}.") if isinstance(value, dict) else [f"{before}{key}"]


@pytest.mark.parametrize("label", ["megatron", "megatron:megatron-fsdp", "torchtitan", "deepspeed", "accelerate"])
def test_programs_declare_the_flags_and_keys_that_are_written(label: str) -> None:
    """Of flags, those that take a value have one, and switches none."""
    framework = catalog.find_framework(label)
    known, dice, written = KNOWN[framework.target], random.Random(1), set()  # noqa: S311 - samples
    for _ in range(40):
        job = job_of(plan_of(framework, drawn(framework, dice)))
        words = [word for word in job.arguments if not word.startswith("activation-checkpoint:")]
        if framework.target in ("deepspeed", "accelerate"):
            assert set(flat(job.keys)) <= set(known["keys"])
            written |= set(flat(job.keys))
            continue
        values = {one for one, after in zip(words, [*words[1:], "--"], strict=True) if after[:2] != "--" == one[:2]}
        switches = {one for one in words if one.startswith("--")} - values
        assert values <= set(known["values"])
        assert {one.replace(".no-", ".") for one in switches} <= set(known.get("switches", known["values"]))
        written |= values | switches
    assert len(written) > 8


def test_the_option_names_all_targets() -> None:
    assert OPTIONS["to"].metavar.split("|") == list(TARGETS)
    assert {one.target for one in FRAMEWORKS} - {"none"} <= set(TARGETS)
