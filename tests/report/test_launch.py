import shlex
from collections.abc import Callable, Iterable

import pytest

from planner import catalog
from planner.domain.configuration import Configuration, Settings
from planner.domain.job import PlanToStart
from planner.domain.prediction import Quantity
from planner.domain.request import Subject
from planner.report.blocks import Block
from planner.report.doubt import launch

Printed = Callable[[Iterable[Block]], str]


def started(one: Configuration, printed: Printed, framework: str = "pytorch", *, in_short: bool = False) -> str:
    record = catalog.find_framework(framework)
    settings = Settings(framework=record, strategy=record.strategy)
    plan = PlanToStart(1, Subject("net", "cluster", settings=settings, layers=96), one, Quantity(1.0))
    return printed(launch(plan, in_short=in_short))


def test_one_node_needs_no_rendezvous(printed: Printed) -> None:
    said = started(Configuration(1, 8, 64, 1, "bf16"), printed)
    assert said == "Start: torchrun --standalone --nproc-per-node 8 train.py  # sub-batch 64, bf16\n"


def test_several_nodes_meet_at_one_of_them(printed: Printed) -> None:
    said = started(Configuration(32, 8, 4, 2, "bf16"), printed)
    assert said == (
        "Start: torchrun --nnodes 32 --nproc-per-node 8 --rdzv-backend c10d \\\n"
        "  --rdzv-endpoint FIRST_NODE train.py  # on each node, sub-batch 4 x 2, bf16\n"
    )


def test_a_shell_reads_one_command(printed: Printed) -> None:
    said = started(Configuration(32, 8, 4), printed).removeprefix("Start: ")
    words = shlex.split(said, comments=True)
    assert words[0] == "torchrun"
    assert words[-3:] == ["--rdzv-endpoint", "FIRST_NODE", "train.py"]


def test_threads_of_an_asynchronous_plan_share_a_process_of_a_node(printed: Printed) -> None:
    said = started(Configuration(9, 8, 11, mode="async"), printed)
    assert said == "Start: mpirun -np 9 --map-by node PROGRAM  # 8 threads, sub-batch 11, fp32\n"


@pytest.mark.parametrize(("framework", "program"), [("megatron-lm", "torchrun"), ("pytorch@2.1", "torchrun"),
                                                    ("mxnet", "mpirun"), ("tensorflow@1.5", "mpirun")])  # fmt: skip
def test_the_framework_decides_what_starts_it(framework: str, program: str, printed: Printed) -> None:
    said = started(Configuration(2, 8, 64), printed, framework)
    assert said.startswith(f"Start: {program} ")
    if program == "mpirun":
        assert said == "Start: mpirun -np 16 --map-by ppr:8:node PROGRAM  # sub-batch 64, fp32\n"


def test_what_a_line_does_not_hold_is_the_comment(printed: Printed) -> None:
    for nodes in (1, 1408):
        for mode in ("sync", "async"):
            one = Configuration(nodes, 16, 123456, 1 if mode == "async" else 1024, "bf16", mode)
            for framework in ("pytorch", "mxnet"):
                assert max(map(len, started(one, printed, framework).splitlines())) <= 80
    said = started(Configuration(1, 8, 123456, 1024), printed)
    assert said == "Start: torchrun --standalone --nproc-per-node 8 train.py\n  # sub-batch 123456 x 1024, fp32\n"


def test_flags_of_the_framework_say_the_plan(printed: Printed) -> None:
    said = started(Configuration(1, 8, 1, 8, "bf16", tensor_parallel=4, sharding=1), printed, "megatron-lm")
    assert said == (
        "Start: CUDA_DEVICE_MAX_CONNECTIONS=1 torchrun --standalone \\\n"
        "  --nproc-per-node 8 pretrain_gpt.py --micro-batch-size 1 \\\n"
        "  --global-batch-size 16 --bf16 --tensor-model-parallel-size 4 \\\n"
        "  --use-distributed-optimizer --optimizer sgd\n"
    )


def test_a_value_without_a_flag_is_named(printed: Printed) -> None:
    said = started(Configuration(1, 8, 1, 8, "bf16", offload="activations"), printed, "megatron-lm")
    assert said == "No start line: megatron-lm has no flag or key for offload activations.\n"


@pytest.mark.parametrize(
    ("framework", "flag"),
    [
        ("torchtitan:bf16-optimizer-state", "--optimizer.implementation fused_opt_states_bf16"),
        ("transformers-deepspeed:fused-loss", "--use_liger_kernel True"),
        ("megatron-lm:grad-reduce-bf16", "--grad-reduce-in-bf16"),
    ],
)
def test_a_switch_that_a_program_parses_stands_in_the_line(framework: str, flag: str, printed: Printed) -> None:
    one = Configuration(1, 8, 1, 1, "bf16")
    assert flag in " ".join(started(one, printed, framework).split())
    assert flag not in started(one, printed, framework.partition(":")[0])


SPLIT = Configuration(6, 8, 1, 256, "bf16", tensor_parallel=4, pipeline_parallel=12, recompute="full")


@pytest.mark.parametrize("in_short", [False, True])
@pytest.mark.parametrize("framework", ["pytorch", "pytorch:compile+graphs", "megatron-lm", "mxnet"])
@pytest.mark.parametrize("one", [SPLIT, Configuration(1, 8, 123456, 1024), Configuration(2, 8, 4)])
def test_a_start_line_says_the_whole_plan_or_what_writes_it(
    one: Configuration, framework: str, printed: Printed, *, in_short: bool
) -> None:
    said = started(one, printed, framework, in_short=in_short)
    if said.startswith("No start line"):
        return
    assert max(map(len, said.splitlines())) <= 80
    if "planner render" not in said:
        programs = framework.partition(":")[2].split("+")
        told = [*one.besides, *filter(None, programs), str(one.sub_batch)]
        assert framework.startswith("megatron") or all(word in " ".join(said.replace("#", "").split()) for word in told)


def test_a_layout_wider_than_a_screen_is_left_to_a_file(printed: Printed) -> None:
    one = Configuration(43, 8, 1, 384, "bf16", tensor_parallel=8, pipeline_parallel=43)
    assert started(one, printed, "megatron-lm") == "Start: planner render plan.json --to slurm -o job.sh\n"


@pytest.mark.parametrize("framework", ["pytorch", "pytorch:compile+graphs"])
def test_a_short_start_line_never_loses_the_split(framework: str, printed: Printed) -> None:
    said = started(SPLIT, printed, framework, in_short=True)
    assert said == "Start: planner render plan.json --to slurm -o job.sh\n"
