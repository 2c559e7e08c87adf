"""The script that converts published tables to runs, on tables of a few rows."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from planner.domain.runs import Run
from planner.formats.runs import read_runs
from validation.convert_runs import SOURCES, convert, main
from validation.sources.rows import grouped, settled

POLLUX = {
    "network": "ResNet-50", "precision": "mixed fp16 (apex amp default O1)", "nodes": "3", "gpus": "4",
    "placement_gpus_on_each_node": "121", "batch_per_gpu": "50", "iter_s": "0.123456789",
}  # fmt: skip
CNN = {
    "network": "resnet-50", "gpu": "TITAN X", "framework": "Torch7 cuDNN 5105", "batch_per_gpu": "16",
    "notes": "total; mean of 10; min 100.5; a.json",
}  # fmt: skip
SWEEP = {
    "source": "BigScience experiments/tr3m-1B3.md", "framework": "Megatron-DeepSpeed", "gpu": "V100-SXM2-16GB",
    "gpus_per_node": "4", "nodes": "2", "gpus": "8", "global_batch": "512", "hidden": "2048.0", "layers": "24.0",
    "seq": "2048", "tp": "1.0", "pp": "2.0", "dp": "4.0", "micro_batch": "8.0", "status": "OOM", "value": "",
    "line": "98", "notes": "16GB node; OOM",
}  # fmt: skip


def converted(tmp_path: Path, name: str, *rows: Mapping[str, str]) -> tuple[list[Run], Counter[str]]:
    source = next(one for one in SOURCES if one.name == name)
    (table,) = source.tables
    with (tmp_path / table).open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    return convert(source, tmp_path)


def test_uneven_nodes_become_a_placement(tmp_path: Path) -> None:
    spread = {**POLLUX, "placement_gpus_on_each_node": "", "nodes": "3", "gpus": "7"}
    even = {**POLLUX, "placement_gpus_on_each_node": "22", "nodes": "2"}
    (stated, assumed, plain), dropped = converted(tmp_path, "pollux-t4", POLLUX, spread, even)
    assert (stated.placement, stated.mini_batch, stated.precision, stated.value) == ((1, 2, 1), 200, "fp16", 0.1234568)
    assert (assumed.placement, assumed.notes.endswith("assumed"), stated.notes) == ((3, 2, 2), True, "")
    assert (plain.placement, plain.nodes, plain.gpus_per_node) == ((), 2, 2)
    assert stated.group == plain.group != ""
    assert assumed.group == ""
    assert not dropped


def test_least_of_passes_and_of_repeated_settings_is_kept(tmp_path: Path) -> None:
    again = {**CNN, "notes": "total; mean of 10; min 99.5; b.json"}
    alone = {**CNN, "notes": "forward; mean of 10; min 30; a.json"}
    host = {**CNN, "gpu": "cpu"}
    plain = {**CNN, "framework": "Torch7 nn (no cuDNN)"}
    (run,), dropped = converted(tmp_path, "cnn-benchmarks", CNN, again, alone, host, plain)
    assert (run.value, run.cluster, run.optimizer) == (0.0995, "titan-x-pascal-box", "none")
    assert run.notes.endswith("least of 2 measurements from 0.0995 to 0.1005")
    assert sum(dropped.values()) == 3


def test_sweep_keeps_what_ran_out_of_memory_and_leaves_out_what_runs_cannot_say(tmp_path: Path) -> None:
    rows = [
        SWEEP,
        {**SWEEP, "line": "46", "status": "ok", "value": "25.0", "gpu": "V100-SXM2-32GB", "notes": "32GB node; 19GB"},
        {**SWEEP, "source": "BigScience experiments/tr8-104B.md"},
        {**SWEEP, "hidden": ""},
        {**SWEEP, "dp": "3.0"},
        {**SWEEP, "source": "BigScience experiments/gpt2.md", "line": "421"},
    ]
    (failed, fits, memory), dropped = converted(tmp_path, "bigscience-v100", *rows)
    assert (failed.status, failed.value, failed.recompute, failed.accumulation_steps) == (
        "out_of_memory",
        None,
        "full",
        16,
    )
    assert (fits.value, fits.recompute, fits.cluster) == (25.0, "none", "jean-zay-v100-32gb")
    assert (failed.sharding, failed.notes, fits.notes) == (1, "", "")
    assert (memory.id, memory.metric, memory.value) == (f"{fits.id}-memory", "memory_bytes", 19 * 2**30)
    assert memory.memory_reading == "in use"
    assert sorted(dropped.values()) == [1, 1, 1, 1]


def test_sweep_tells_megatron_alone_from_deepspeed_and_takes_the_sub_batch_that_memory_says(tmp_path: Path) -> None:
    ours = {**SWEEP, "source": "BigScience experiments/gpt2.md", "framework": "Megatron + Deepspeed 3D (new branch)"}
    ours |= {"gpu": "V100-SXM2-32GB", "status": "ok", "micro_batch": "4.0", "notes": "DS=Y; GPU M=29GB; "}
    rows = [
        {**ours, "line": "181", "global_batch": "1536", "value": "206"},
        {**ours, "line": "186", "value": "126"},
        {**ours, "line": "250", "value": "104"},
    ]
    found, _ = converted(tmp_path, "bigscience-v100", *rows)
    deepspeed, alone, sharded = (run for run in found if run.metric == "iteration_s")
    assert (deepspeed.framework, deepspeed.sub_batch, deepspeed.sharding) == ("megatron-deepspeed", 6, 0)
    assert deepspeed.notes.endswith("sub-batch printed as 4")
    assert (alone.framework, alone.sub_batch) == ("megatron-lm", 4)
    assert (sharded.framework, sharded.sharding) == ("megatron-deepspeed", 1)


LLAMA = {
    "source": "torchtitan benchmarks/llama3_h100_202412", "network": "Llama3.1-405B", "gpus_per_node": "8",
    "gpu": "H100 96GB HBM2e 500W cap (Grand Teton)", "nodes": "64", "gpus": "512", "precision": "fp8", "seq": "8192",
    "batch_per_gpu": "32", "value": "100", "tp": "8", "pp": "8", "notes": "1F1B FSDP 8 TP 8 PP 8 compile full AC",
}  # fmt: skip


def test_sharded_plans_say_their_degrees(tmp_path: Path) -> None:
    context = {**LLAMA, "batch_per_gpu": "8", "notes": "FSDP 4, CP 2 TP 8 PP 8 compile AsyncTP 1F1B; full AC"}
    virtual = {**LLAMA, "notes": f"Interleaved {LLAMA['notes']}"}
    found, dropped = converted(tmp_path, "torchtitan-fp8", LLAMA, context, virtual, {**LLAMA, "precision": "bf16"})
    one, ring, chunks = (run for run in found if run.metric == "samples_per_s")
    assert {run.value for run in found if run.memory_reading == "reserved"} == {82.5 * 2**30}
    assert (one.data_parallel, one.sub_batch, one.accumulation_steps, one.mini_batch) == (8, 4, 8, 256)
    assert (one.sharding, one.recompute, one.framework, one.sequence_parallel) == (
        2,
        "full",
        "torchtitan-compile",
        "on",
    )
    assert one.value == pytest.approx(100 * 512 / 8192)
    assert (ring.data_parallel, ring.context_parallel, ring.mini_batch) == (4, 2, 32)
    assert ring.framework == "torchtitan-async-tensor"
    assert (chunks.virtual_stages, chunks.schedule, one.schedule) == (2, "interleaved", "1f1b")
    assert sum(dropped.values()) == 1


def run(**changes: Any) -> Run:
    values = {"id": "a", "network": "n", "cluster": "c", "metric": "iteration_s", "value": 1.0, "mini_batch": 8}
    return Run(**{**values, "gpus_per_node": 4, **changes})


def test_repeated_settings_become_their_median() -> None:
    (one, other) = settled([run(value=3.0), run(value=1.0), run(value=2.0), run(mini_batch=16)])
    assert (one.value, one.notes) == (2.0, "median of 3 measurements from 1 to 3")
    assert (other.value, other.notes) == (1.0, "")


def test_only_rivals_for_equal_work_are_grouped() -> None:
    rivals = [run(tensor_parallel=1), run(tensor_parallel=2)]
    alone = [run(mini_batch=16), run(gpus_per_node=2), run(mini_batch=32), run(mini_batch=32, status="out_of_memory")]
    groups = [one.group for one in grouped([*rivals, *alone])]
    assert groups == ["n-c-fp32-pytorch-4gpu-b8"] * 2 + [""] * 4


def test_missing_table_says_where_to_get_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--data", str(tmp_path), "--out", str(tmp_path)]) == 3
    said = capsys.readouterr().err
    assert (
        "tensorflow_benchmarks_2017.csv: table must be there, got nothing; transcribe it from tensorflow/docs" in said
    )


def test_command_writes_files_that_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("validation.convert_runs.SOURCES", tuple(one for one in SOURCES if one.name == "seeds"))
    assert main(["--data", str(tmp_path), "--out", str(tmp_path)]) == 0
    committed = Path(__file__).parents[2] / "validation" / "seeds.csv"
    assert (tmp_path / "seeds.csv").read_bytes() == committed.read_bytes()
    assert len(read_runs(tmp_path / "seeds.csv").rows) == 6


LAMBDA = {
    "framework": "PyTorch, NGC container (v1 set; 2022-2023)", "network": "ResNet-50 v1.5", "gpu": "H100 80GB SXM5",
    "gpus_per_node": "8", "batch_per_gpu": "640", "precision": "fp32 (TF32 on Ampere and later by container default)",
    "value": "14856", "notes": "host label: a",
}  # fmt: skip


def test_hosts_of_one_setting_become_their_median_and_sets_part(tmp_path: Path) -> None:
    again = {**LAMBDA, "value": "14981", "notes": "host label: b"}
    old = {**LAMBDA, "gpu": "V100 16GB"}
    late = {**LAMBDA, "framework": "PyTorch, NGC pytorch:24.10-py3 (v2 set)"}
    short = {**LAMBDA, "network": "BERT-base"}
    other = {**LAMBDA, "network": "GNMT v2"}
    (one, volta), dropped = converted(tmp_path, "lambda-v1", LAMBDA, again, old, late, short, other)
    assert (one.value, one.precision, one.framework) == (14918.5, "tf32", "pytorch")
    assert (one.cluster, one.gpus_per_node) == ("lambda-h100-sxm5-80gb", 8)
    assert volta.precision == "fp32"
    assert sorted(dropped.values()) == [1, 1, 1]
    (locked,), _ = converted(tmp_path, "lambda-v2", LAMBDA, late)
    assert (locked.source, locked.framework_version) == ("lambda-v2", "NGC 24.10")


def test_passes_of_u39kun_are_forward_and_backward(tmp_path: Path) -> None:
    both = {
        "framework": "PyTorch 0.3.0", "network": "vgg16", "gpu": "Titan V", "batch_per_gpu": "16", "precision": "fp16",
        "value": "74.1", "notes": "forward+backward; Titan V",
    }  # fmt: skip
    alone = {**both, "notes": "forward; Titan V"}
    slow = {**both, "gpu": "1080 Ti"}
    (one,), dropped = converted(tmp_path, "u39kun", both, alone, slow)
    assert (one.value, one.optimizer, one.framework_version) == (0.0741, "none", "0.3.0")
    assert sum(dropped.values()) == 2
