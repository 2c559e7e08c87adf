"""Plans that split a network, from the command line: what is refused, in which words, and what is answered."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

Run = Callable[..., Any]
GPT2 = ("--network", "gpt2", "--cluster", "dgx-a100", "--precision", "fp16", "--sub-batch", "1")
MOE = ("--network", "mixtral-8x7b", "--cluster", "dgx-a100", "--precision", "bf16", "--sub-batch", "1")
CHUNKS = "--virtual-stages must be such that stages x virtual stages divide the 12 layers"
TO_PRICE = ("--cluster", "dgx-a100", "--nodes", "1", "--sub-batch", "4", "--precision", "bf16", "--json")
UNEQUAL = "whose stages are layers of unequal size"
NO_BLOCKS = "which is not made of attention blocks"
HEADS = "a divisor of the 12 heads of layer layer1.attention.core"
BEST_CHUNKS = "--virtual-stages must be a divisor of the 12 layers, at least one a chunk, with --stages best"
PASSES = "--accumulation must be a multiple of the pipeline stages, with virtual stages"
SOME_LAYER = "--recompute-every must be at most the layers of a pipeline stage, whose inputs it groups"
TWICE = "--accumulation must be at least twice the pipeline stages in a zero-bubble-v schedule"
OF_MEGATRON = "1f1b or interleaved"
EXPERTS = "--expert must be a divisor of the 8 experts and of data x context ranks"
CNN = ("--network", "resnet50", "--cluster", "dgx-a100", "--sub-batch", "1")
ALEXNET = ("--network", "alexnet", *CNN[2:])


@pytest.mark.parametrize(
    ("asked", "options", "sentence"),
    [
        (GPT2, "--tensor 3", "--tensor must be a divisor of the 8 GPUs, got 3; the nearest are 2 and 4"),
        (GPT2, "--tensor 2 --pipeline 3",
         "--tensor x --pipeline must be a divisor of the 8 GPUs, got 6; the nearest are 4 and 8"),
        (GPT2, "--tensor 8", f"--tensor must be {HEADS}, got 8; the nearest are 6 and 12"),
        (GPT2, "--nodes 2 --pipeline 16", "--pipeline must be at most the 12 layers, got 16; the nearest is 12"),
        (GPT2, "--pipeline 2 --virtual-stages 4", f"{CHUNKS}, got 4; the nearest are 3 and 6"),
        (GPT2, "--pipeline 4 --virtual-stages 3 --accumulation 6", f"{PASSES}, got 6; the nearest are 4 and 8"),
        (GPT2, "--pipeline 2 --schedule gpipe --framework megatron",
         f"--schedule must be {OF_MEGATRON} in framework megatron-lm, got 'gpipe'"),
        (GPT2, "--pipeline 2 --virtual-stages 2 --accumulation 2 --framework deepspeed",
         "--virtual-stages must be 1 in framework deepspeed, which has no interleaved schedule, got 2"),
        (GPT2, "--pipeline 2 --schedule zero-bubble-v",
         "--virtual-stages must be 2 in a zero-bubble-v schedule, got 1"),
        (GPT2, "--pipeline 2 --schedule zero-bubble-v --virtual-stages 2 --accumulation 3",
         f"{TWICE}, got 3; the nearest is 4"),
        (GPT2, "--pipeline 2 --schedule no-flush --framework generic --accumulation 2",
         "--accumulation must be 1 in a no-flush schedule, which updates after every micro-batch, got 2"),
        (GPT2, "--expert 2", "--expert must be 1 for gpt2, which has no experts, got 2"),
        (MOE, "--nodes 2 --expert 16", f"{EXPERTS}, got 16; the nearest is 8"),
        (GPT2, "--pipeline 2 --sharding 3 --framework megatron",
         "--sharding must be 0 or 1 in framework megatron-lm, got 3; the nearest is 1"),
        (GPT2, "--mode async --tensor 2", "--tensor must be 1 in an asynchronous plan, got 2"),
        (CNN, "--pipeline 2 --framework megatron",
         "--pipeline must be 1 for resnet50 in framework megatron-lm, whose stages are attention blocks, got 2"),
        (CNN, "--pipeline 2 --framework caffe", "--pipeline must be 1 in framework caffe, which has none, got 2"),
        (ALEXNET, "--nodes 2 --pipeline 16",
         "--pipeline must be at most the 8 layers of alexnet with parameters, got 16; the nearest is 8"),
        (CNN, "--pipeline 2 --virtual-stages 2",
         f"--virtual-stages must be 1 for resnet50, {NO_BLOCKS}, got 2"),
        (CNN, "--tensor 2 --pipeline 2",
         f"--tensor must be 1 beside a pipeline, sharding, recompute or offload of resnet50, {NO_BLOCKS}, got 2"),
        (GPT2, "--recompute every:13", f"{SOME_LAYER}, got 13; the nearest is 12"),
        (GPT2, "--recompute full --recompute-every 8 --pipeline 2", f"{SOME_LAYER}, got 8; the nearest is 6"),
        (GPT2, "--recompute-every 2", "--recompute-every must be 1 unless --recompute is full, got 2"),
        (GPT2, "--recompute every:2 --recompute-every 3",
         "--recompute-every must be left out with --recompute every:2, got '3'"),
        (GPT2, "--pipeline 2 --virtual-stages 5 --accumulation 2 --stages best",
         f"{BEST_CHUNKS}, got 5; the nearest are 4 and 6"),
        (CNN, "--recompute per-stage",
         f"--recompute must be none or full for resnet50, {NO_BLOCKS}, got 'per-stage'"),
        (CNN, "--recompute selective", f"--recompute must be none or full for resnet50, {NO_BLOCKS}, got 'selective'"),
        (CNN, "--sharding 3 --pipeline 2",
         f"--sharding must be 0, 1 or 2 beside a pipeline of resnet50, {UNEQUAL}, got 3; the nearest is 2"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_sentence_with_the_nearest_that_can(
    asked: tuple[str, ...], options: str, sentence: str, run: Run
) -> None:
    code, out, err = run("predict", *asked, *options.split())
    assert (code, out, err) == (2, "", f"planner: {sentence}\n")


def test_a_context_degree_beyond_the_sequence(run: Run) -> None:
    short = ("--network", "gpt:layers=2,hidden=64,heads=4,sequence=4,vocabulary=128", *GPT2[2:])
    code, _, err = run("predict", *short, "--context", "8")
    assert code == 2
    assert "--context must be such that twice the degree divides the 4 positions, got 8; the nearest is 2" in err


def test_a_search_of_schedules_that_a_framework_has_not_is_refused(run: Run) -> None:
    asked = (*GPT2[:-2], "--target-batch", "8", "--framework", "megatron", "--schedule", "gpipe,no-flush")
    code, out, err = run("suggest", *asked)
    assert (code, out) == (2, "")
    assert f"--schedule must be {OF_MEGATRON} in framework megatron-lm, got 'gpipe,no-flush'" in err


def test_without_a_flush_the_answer_says_how_stale_gradients_are(run: Run) -> None:
    asked = (*GPT2, "--pipeline", "4", "--schedule", "no-flush", "--framework", "generic")
    code, out, err = run("predict", *asked)
    assert code == 0
    assert "gradients are stale" in err
    assert "staleness 1.5 updates" in out
    _, document, _ = run("predict", *asked, "--json")
    answer = json.loads(document)
    assert answer["staleness"]["pmf"] == {"0": 0.25, "1": 0.25, "2": 0.25, "3": 0.25}
    assert "bubble" not in {one["name"] for one in answer["terms"]}


def test_a_degree_in_planner_toml_is_told_by_its_key(run: Run, tmp_path: Any) -> None:
    (tmp_path / "planner.toml").write_text('format = "planner/settings"\nversion = 1\ntensor = "8"\n')
    code, out, err = run("predict", *GPT2)
    assert (code, out) == (3, "")
    assert f"\nplanner: planner.toml: tensor: tensor must be {HEADS}, got 8" in err


def test_recompute_of_every_kth_layer_by_its_short_form(run: Run, tmp_path: Any) -> None:
    long = ("--recompute", "full", "--recompute-every", "4")
    answers = [run("predict", *GPT2, *options, "--json")[:2] for options in (long, ("--recompute", "every:4"))]
    assert answers[0] == answers[1]
    code, out = answers[0]
    keys = json.loads(out)["configuration"]
    assert (code, keys["recompute"], keys["recompute_every"]) == (0, "full", 4)
    words = " ".join(run("predict", *GPT2, *long)[1].split())
    assert "recompute full, inputs of 1 layer in 4" in words
    search = (
        "suggest",
        *GPT2[:-2],
        "--target-batch",
        "16",
        "--nodes",
        "1",
        "--tensor",
        "2",
        "--pipeline",
        "1",
        "--json",
    )
    (tmp_path / "planner.toml").write_text('format = "planner/settings"\nversion = 1\nrecompute = "every:4"\n')
    for options, every, source in (
        ((), [4], "planner.toml"),
        (("--recompute", "every:2,every:3"), [2, 3], "option"),
        (("--recompute-every", "6"), [6], "option"),
    ):
        answer = json.loads(run(*search, *options)[1])
        assert answer["request"]["recompute"]["value"] == ["full"]
        assert answer["request"]["recompute_every"] == {"value": every, "source": source}
        assert {one["configuration"]["recompute_every"] for one in answer["plans"]} <= set(every)
        assert answer["status"] == "found"


INNER = "pipeline,data,tensor,context,expert"


def test_the_order_of_ranks_is_said_and_places_groups(run: Run, tmp_path: Any) -> None:
    asked = ("--nodes", "2", "--tensor", "2", "--pipeline", "4", "--accumulation", "8")
    answers = {}
    for order in ("tensor,context,expert,data,pipeline", INNER):
        code, out, _ = run("predict", *GPT2, *asked, "--rank-order", order, "--json")
        assert code == 0
        answers[order] = json.loads(out)
    default, inner = answers.values()
    assert "rank_order" not in default["subject"]
    assert inner["subject"]["rank_order"] == INNER.split(",")
    seconds = [{term["name"]: term["seconds"] for term in one["terms"]} for one in (default, inner)]
    assert seconds[0]["stage_messages"] > 2 * seconds[1]["stage_messages"]
    assert seconds[0]["tensor_messages"] < seconds[1]["tensor_messages"] / 2
    assert [any(w["code"] == "tensor_across_nodes" for w in one["warnings"]) for one in (default, inner)] == [0, 1]
    (tmp_path / "planner.toml").write_text(
        f'format = "planner/settings"\nversion = 1\nrank_order = {json.dumps(INNER.split(","))}\n'
    )
    _, out, _ = run("predict", *GPT2, *asked, "--json")
    assert json.loads(out) == inner


def test_an_order_of_ranks_in_a_request_and_in_a_framework_file(run: Run, tmp_path: Any) -> None:
    file = tmp_path / "own.toml"
    opening = 'format = "planner/framework"\nversion = 1\nname = "own"\nrank_order = '
    file.write_text(opening + json.dumps(INNER.split(",")))
    search = ("suggest", *GPT2[:-2], "--target-batch", "16", "--nodes", "1", "--pipeline", "2", "--json")
    given = ("--rank-order", INNER)
    for options, source in ((given, "option"), (("--framework", str(file)), "framework")):
        code, out, _ = run(*search, *options)
        answer = json.loads(out)
        assert (code, answer["request"]["rank_order"]) == (0, {"value": INNER.split(","), "source": source})
        assert answer["subject"]["rank_order"] == INNER.split(",")
    _, out, _ = run(*search)
    assert "rank_order" not in json.loads(out)["request"]
    file.write_text(opening + '["tensor"]')
    code, _, err = run(*search, "--framework", str(file))
    assert code == 3
    assert "rank_order must be tensor, context, expert, data, pipeline in some order, each once, got 'tensor'" in err


def test_a_mini_batch_is_that_of_the_copies(run: Run) -> None:
    asked = (*GPT2[:-2], "--tensor", "2", "--accumulation", "3", "--mini-batch")
    code, _, err = run("predict", *asked, "14")
    assert code == 2
    words = "--mini-batch must be a multiple of data-parallel copies x accumulation, here 12, got 14"
    assert f"{words}; the nearest are 12 and 24" in err
    code, out, _ = run("predict", *asked, "24", "--json")
    assert (code, json.loads(out)["configuration"]["sub_batch"]) == (0, 2)


def test_tensor_groups_beyond_a_node_are_lawful_and_warned_of(run: Run) -> None:
    code, out, _ = run("predict", *GPT2, "--nodes", "3", "--tensor", "12", "--json")
    assert code == 0
    assert "tensor_across_nodes" in {one["code"] for one in json.loads(out)["warnings"]}


@pytest.mark.parametrize(
    "network",
    ["gpt:layers=100,hidden=999936,heads=128,sequence=2048,vocabulary=51200",  # 10^15 parameters
     "gpt:layers=20,hidden=8192,heads=64,sequence=999936,vocabulary=51200"],
)  # fmt: skip
def test_what_nobody_trains_is_answered_without_wrapping_around(network: str, run: Run) -> None:
    asked = (
        "--network",
        network,
        *GPT2[2:],
        "--nodes",
        "8",
        "--tensor",
        "8",
        "--pipeline",
        "4",
        "--accumulation",
        "64",
    )
    code, out, _ = run("predict", *asked, "--json")
    answer = json.loads(out)
    assert code == 0
    assert answer["iteration_s"]["value"] > 1000
    assert answer["memory_bytes"]["total"] > 10**11
    assert all(term["seconds"] >= 0 for term in answer["terms"])
    assert 0 < answer["mfu"] < 1
    assert "out_of_memory" in {one["code"] for one in answer["warnings"]}


def test_the_answer_tells_how_it_is_split_and_its_utilization(run: Run) -> None:
    options = "--tensor 2 --pipeline 2 --virtual-stages 2 --accumulation 4 --recompute full --sequence-parallel on"
    code, out, _ = run("predict", *GPT2, *options.split())
    words = " ".join(out.split())
    assert code == 0
    for said in ("tensor 2", "sequence parallel", "pipeline 2", "virtual 2", "recompute full", "bubble"):
        assert said in words
    assert "utilization MFU" in words
    assert ", HFU" in words
    _, document, _ = run("predict", *GPT2, *options.split(), "--json")
    answer = json.loads(document)
    assert answer["hfu"] == pytest.approx(answer["mfu"] * 4 / 3, rel=0.2)
    assert sum(one.get("exposed_seconds", one["seconds"]) for one in answer["terms"]) == pytest.approx(
        answer["iteration_s"]["value"], rel=1e-9
    )
    assert answer["configuration"]["data_parallel"] == 2


def test_stages_of_layers_are_told_by_the_layers_that_they_start_with(run: Run) -> None:
    options = ("predict", *ALEXNET, "--precision", "fp16", "--pipeline", "2", "--accumulation", "4")
    code, out, _ = run(*options, "--framework", "deepspeed")
    assert code == 0
    assert "stages start with conv1, " in " ".join(out.split())
    _, document, _ = run(*options, "--framework", "deepspeed", "--json")
    answer = json.loads(document)
    first, second = answer["stages"]
    assert (first, second in out) == ("conv1", True)
    assert {"bubble", "stage_messages", "all_reduce", "update"} <= {one["name"] for one in answer["terms"]}
    assert sum(one.get("exposed_seconds", one["seconds"]) for one in answer["terms"]) == pytest.approx(
        answer["iteration_s"]["value"], rel=1e-9
    )
    assert "formula_only" not in {one["code"] for one in answer["warnings"]}  # torchgpipe's runs show such pipelines


def test_suggest_tries_pipelines_of_layers_where_the_framework_deals_them_out(run: Run) -> None:
    asked = ("suggest", "--network", "alexnet", "--cluster", "dgx-a100", "--nodes", "1", "--target-batch", "64")
    fixed = ("--precision", "fp16", "--json")

    def degrees(*options: str) -> set[int]:
        code, out, _ = run(*asked, *fixed, "--top", "100", *options)
        assert code == 0
        return {one["configuration"].get("pipeline_parallel", 1) for one in json.loads(out)["plans"]}

    assert degrees() == {1}
    assert degrees("--framework", "deepspeed") == {1, 2, 4, 8}
    assert degrees("--parallelism", "pipeline") == {2, 4, 8}
    assert degrees("--pipeline", "2,8") == {2, 8}


def test_groups_that_share_layers_are_asked_for_by_kind(run: Run) -> None:
    asked = (
        "suggest", "--network", "alexnet", "--cluster", "dgx-a100", "--target-batch", "64", "--nodes", "1",
        "--precision", "fp16", "--sub-batch", "8,32",
    )  # fmt: skip
    for kind in ("model", "hybrid"):
        code, out, _ = run(*asked, "--parallelism", kind, "--json")
        assert code == 0
        assert all(one["configuration"]["tensor_parallel"] > 1 for one in json.loads(out)["plans"])
    code, out, err = run(*asked, "--parallelism", "model", "--framework", "mxnet")
    assert (code, out) == (2, "")
    assert "must be of the kinds that alexnet and framework mxnet allow, data, got 'model'" in err
    code, out, err = run(*asked, "--pipeline", "2", "--framework", "megatron")
    assert (code, out) == (2, "")
    assert "--pipeline must be 1 for alexnet in framework megatron-lm, which has no pipeline of its layers" in err


@pytest.mark.parametrize("network", ["gpt2", "t5-small", "mixtral-8x7b", "vit-b16"])
@pytest.mark.parametrize("split", ["--tensor 2", "--pipeline 2 --accumulation 4 --recompute full --sharding 1"])
def test_a_printed_network_is_split_as_the_bundled_one(network: str, split: str, run: Run, tmp_path: Any) -> None:
    code, text, _ = run("show", "networks", network, "--toml")
    assert code == 0
    (tmp_path / "mine.toml").write_text(text)
    priced = (run("predict", "--network", one, *TO_PRICE, *split.split()) for one in ("mine.toml", network))
    own, bundled = (json.loads(out) for _, out, _ in priced)
    assert own["subject"].pop("network_option") == "mine.toml"
    assert own == bundled
    assert own["format"] == "planner/prediction"


def test_a_network_of_layers_alone_is_split_and_a_layer_that_no_rank_divides_is_named(run: Run, tmp_path: Any) -> None:
    """Names say nothing; the second block has 6 heads, where the others have 4."""
    layers = ['{ name = "x", kind = "linear", attributes = { features = 24 } }']
    for block, heads in enumerate((4, 6, 4)):
        last = "x" if not block else f"s{block - 1}"
        layers += [
            f'{{ name = "n{block}", kind = "layer_norm", inputs = ["{last}"] }}',
            f'{{ name = "q{block}", kind = "linear", attributes = {{ features = 72 }} }}',
            f'{{ name = "c{block}", kind = "attention", attributes = {{ heads = {heads} }} }}',
            f'{{ name = "o{block}", kind = "linear", attributes = {{ features = 24 }} }}',
            f'{{ name = "s{block}", kind = "add", inputs = ["o{block}", "{last}"] }}',
        ]
    layers += ['{ name = "y", kind = "linear", attributes = { features = 10 } }', '{ name = "loss", kind = "loss" }']
    head = 'format = "planner/network"\nversion = 1\nname = "mine"\ninput = [32, 16]\n'
    (tmp_path / "mine.toml").write_text(f"{head}layers = [\n{', '.join(layers)}\n]\n".replace(", {", ",\n{"))
    asked = ("predict", "--network", "mine.toml", *TO_PRICE)
    for split in (("--tensor", "2"), ("--pipeline", "2", "--accumulation", "4")):
        code, out, _ = run(*asked, *split)
        assert code == 0
        assert json.loads(out)["mfu"] > 0
    code, out, err = run(*asked, "--tensor", "4")
    assert (code, json.loads(out)["rule"]) == (2, "--tensor must be a divisor of the 6 heads of layer c1")
    assert err.startswith("planner: --tensor must be a divisor of the 6 heads of layer c1, got 4; the nearest")
    code, out, err = run(*asked, "--pipeline", "4", "--accumulation", "4")
    assert (code, json.loads(out)["exit_code"]) == (2, 2)
    assert err.startswith("planner: --pipeline must be at most the 3 layers, got 4")


def test_context_degrees_are_searched_where_samples_are_long(run: Run) -> None:
    """Where the program has them and each rank keeps 8192 positions; else 1, as where 1 is asked for."""

    def contexts(sequence: int, framework: str) -> set[int]:
        network = f"llama:layers=4,hidden=1024,heads=8,kv_heads=8,ffn=2048,sequence={sequence}"
        about = ("--network", network, "--cluster", "dgx-h100", "--nodes", "2", "--precision", "bf16")
        asked = ("--target-batch", "4", "--framework", framework, "--top", "100", "--sharding", "0", "--pipeline", "1")
        code, out, _ = run("suggest", *about, *asked, "--recompute", "none", "--json")
        assert code == 0
        return {plan["configuration"].get("context_parallel", 1) for plan in json.loads(out)["plans"]}

    assert contexts(32768, "megatron") == {1, 2, 4}
    assert contexts(8192, "megatron") == contexts(32768, "megatron-deepspeed") == {1}


def test_fp8_is_searched_where_it_is_named(run: Run) -> None:
    network = "llama:layers=4,hidden=1024,heads=8,kv_heads=8,ffn=4096,sequence=2048"
    asked = ("--cluster", "dgx-h100", "--nodes", "1", "--target-batch", "64", "--framework", "megatron", "--top", "200")

    def precisions(*more: str) -> set[str]:
        code, out, _ = run("suggest", "--network", network, *asked, *more, "--json")
        assert code == 0
        return {plan["configuration"]["precision"] for plan in json.loads(out)["plans"]}

    assert "fp8" in precisions("--precision", "bf16,fp8", "--tensor", "1", "--pipeline", "1")
    assert "fp8" not in precisions("--tensor", "1", "--pipeline", "1")


def test_gradients_of_megatron_are_wide_in_bf16_and_narrow_in_fp16(run: Run) -> None:
    """NVIDIA/Megatron-LM 372: 6 + 12/d bytes a parameter and messages of fp32, against 4 + 16/d and fp16."""
    asked = ("--network", "llama2-13b:sequence=2048", "--cluster", "dgx-a100", "--nodes", "8", "--sub-batch", "1")
    of_plan = ("--framework", "megatron-lm", "--sharding", "1", "--precision", "bf16,fp16", "--json")
    code, out, _ = run("predict", *asked, *of_plan)
    wide, narrow = json.loads(out)["predictions"]
    (sent, gathered), (half, _) = (
        [
            next(term["seconds"] for term in one["terms"] if term["name"] == name)
            for name in ("all_reduce", "updated_weights")
        ]
        for one in (wide, narrow)
    )
    state = sum(wide["memory_bytes"][name] for name in ("weights", "gradients", "optimizer"))
    assert (code, state / 2**30) == (0, pytest.approx(75.0, abs=0.1))
    assert sent - half == pytest.approx(gathered, rel=0.02), "two bytes more a parameter take what gathering two does"
    assert wide["memory_bytes"]["total"] > 80 * 2**30 > narrow["memory_bytes"]["total"]
