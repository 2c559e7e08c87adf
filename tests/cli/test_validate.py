"""``planner validate``, whole: document, view, exit codes, rows that are wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planner import catalog

Run = Callable[..., tuple[int, str, str]]
HEADER = "id,source,network,cluster,nodes,gpus_per_node,sub_batch,precision,mode,metric,value,status,group"
ONE = "one,s,resnet50,dgx1-v100,1,1,64,fp32,sync,samples_per_s,350,ok,g"
EIGHT = "eight,s,resnet50,dgx1-v100,1,8,64,fp32,sync,samples_per_s,2600,ok,g"
CLUSTER = """
format = "planner/cluster"
version = 1
name = "mine"
nodes = 1
[node]
gpus = 2
gpu = "v100-sxm2-16gb"
host_memory_GiB = 64
cpu_threads = 8
[links.intra_node]
kind = "pcie3"
bandwidth_GBps = 10
latency_us = 5
"""


def write(path: Path, *rows: str, header: str = HEADER) -> str:
    path.write_text("\n".join([header, *rows]) + "\n")
    return str(path)


def document(run: Run, *arguments: str) -> dict[str, Any]:
    code, out, err = run("validate", *arguments, "--json")
    assert (code, err) == (0, "")
    found: dict[str, Any] = json.loads(out)
    return found


def test_predicted_values_are_those_of_predict(run: Run, tmp_path: Path) -> None:
    found = document(run, "--runs", write(tmp_path / "runs.csv", ONE, EIGHT))
    arguments = ("--network", "resnet50", "--cluster", "dgx1-v100", "--gpus-per-node", "1,8", "--sub-batch", "64")
    code, out, _ = run("predict", *arguments, "--input", "synthetic", "--json")
    assert code == 0
    predictions = json.loads(out)["predictions"]
    wanted = [one["samples_per_s"]["value"] for one in predictions]
    slower = [one["iteration_s"]["high"] / one["iteration_s"]["value"] for one in predictions]
    rows = found["rows"]
    assert [row["predicted"] for row in rows] == pytest.approx(wanted)
    assert [row["low"] for row in rows] == pytest.approx([rate / by for rate, by in zip(wanted, slower, strict=True)])
    errors = [abs(row["predicted"] / row["measured"] - 1) for row in rows]
    assert found["summary"]["mape"] == pytest.approx(sum(errors) / 2)
    assert found["ranking"]["groups"] == 1


def test_wrong_rows_are_results_in_file_order(run: Run, tmp_path: Path) -> None:
    rows = [
        ONE,
        "zero,s,resnet50,dgx1-v100,1,1,0,fp32,sync,samples_per_s,350,ok,g",
        "nowhere,s,resnet50,nowhere,1,1,8,fp32,sync,samples_per_s,350,ok,",
        "missing,s,resnet50,missing.toml,1,1,8,fp32,sync,samples_per_s,350,ok,",
        "nothing,s,nothing,dgx1-v100,1,1,8,fp32,sync,samples_per_s,350,ok,",
        "argument,s,resnet50:strid=1x1,dgx1-v100,1,1,8,fp32,sync,samples_per_s,350,ok,",
        "nul,s,a\0b.toml,dgx1-v100,1,1,8,fp32,sync,samples_per_s,350,ok,",
        "huge,s,resnet50,dgx1-v100,1,8,999999999,fp32,sync,iteration_s,350,ok,",
        "one,s,resnet50,dgx1-v100,1,1,8,fp32,sync,samples_per_s,350,ok,",
        EIGHT,
    ]
    found = document(run, "--runs", write(tmp_path / "runs.csv", *rows))
    assert [row["line"] for row in found["rows"]] == list(range(2, 12))
    predicted = {row["id"] for row in found["rows"] if row["predicted"] is not None}
    assert predicted == {"one", "huge", "eight"}
    for row in found["rows"]:
        assert (row["refused_reason"] is None) == (row["predicted"] is not None)
        if row["refused_reason"]:
            assert " must be " in row["refused_reason"]


def test_paths_start_from_the_file_of_runs(run: Run, tmp_path: Path) -> None:
    (tmp_path / "data" / "clusters").mkdir(parents=True)
    (tmp_path / "data" / "clusters" / "mine.toml").write_text(CLUSTER)
    path = write(tmp_path / "data" / "runs.csv", ONE.replace("dgx1-v100", "clusters/mine.toml"))
    found = document(run, "--runs", path)
    assert found["rows"][0]["refused_reason"] is None
    assert list(found["by"]["cluster"]) == ["mine"]


def test_a_cluster_of_every_bundled_kind_is_priced(run: Run, tmp_path: Path) -> None:
    """One of each chip and pair of kinds of links: all of them would take 5 s."""
    kinds: dict[object, str] = {}
    for cluster in map(catalog.find_cluster, catalog.names("clusters")):
        inside, between = (link.kind if link else "" for link in (cluster.intra_node, cluster.inter_node))
        kinds |= {cluster.node.accelerator.chip: cluster.name, (inside, between): cluster.name}
    rows = [f"{name},s,mlp,{name},1,1,8,fp32,sync,samples_per_s,350,ok," for name in sorted({*kinds.values()})]
    found = document(run, "--runs", write(tmp_path / "runs.csv", *rows))
    assert [row["id"] for row in found["rows"] if row["refused_reason"] or not row["predicted"]] == []
    assert len(found["rows"]) == len(rows) > 20


def test_groups_of_two_files_are_told_apart(run: Run, tmp_path: Path) -> None:
    first, second = write(tmp_path / "a.csv", ONE, EIGHT), write(tmp_path / "b.csv", EIGHT, ONE)
    found = document(run, "--runs", first, "--runs", second)
    assert [row["id"] for row in found["rows"]] == ["one", "eight", "eight", "one"]
    assert [group["group"] for group in found["groups"]] == [f"g ({first})", f"g ({second})"]


def test_a_named_calibration_must_be_of_the_device_of_the_row(run: Run, tmp_path: Path) -> None:
    rows = (ONE, "t,s,sprint-15,tsubame-kfc,1,1,8,fp32,sync,iteration_s,1,ok,")
    path = write(tmp_path / "runs.csv", *rows)
    found = document(run, "--runs", path, "--calibration", "v100-sxm2-16gb")
    assert found["rows"][0]["predicted"] is not None
    assert "--calibration must be of k80" in found["rows"][1]["refused_reason"]


def test_framework_holds_for_all_rows(run: Run, tmp_path: Path) -> None:
    path = write(tmp_path / "runs.csv", f"{ONE},tensorflow", header=f"{HEADER},framework")
    assert document(run, "--runs", path, "--framework", "mxnet@1.0")["summary"]["n"] == 1


def test_same_command_same_bytes(run: Run, tmp_path: Path) -> None:
    path = write(tmp_path / "runs.csv", ONE, EIGHT)
    assert run("validate", "--runs", path, "--json") == run("validate", "--runs", path, "--json")


def test_view_fits_80_columns(run: Run, tmp_path: Path) -> None:
    other = ONE.replace("one,", "other,").replace("dgx1-v100", "dgx-a100").replace("resnet50", "vgg16")
    path = write(tmp_path / "runs.csv", ONE, EIGHT, ONE, other.replace(",s,", ",t,"))
    code, out, err = run("validate", "--runs", "runs.csv")
    assert (code, err) == (0, "")
    assert max(len(line) for line in out.splitlines()) <= 80
    assert out.startswith("runs.csv: predicted against measured")
    assert Path(path).name in out
    for words in ("By network", "By cluster", "By source", "Ranking", "Refused rows", "Worst rows", "held out"):
        assert words in out


def test_what_all_rows_share_is_said_once(run: Run, tmp_path: Path) -> None:
    write(tmp_path / "runs.csv", ONE)
    _, out, _ = run("validate", "--runs", "runs.csv")
    assert "all of  network resnet50, cluster dgx1-v100, source s\n" in out
    assert (out.count("held out"), out.count("By "), len(out.splitlines()) < 20) == (1, 0, True)


@pytest.mark.parametrize("as_json", [False, True])
def test_without_a_row_the_exit_code_is_3_and_the_document_has_the_reasons(
    run: Run, tmp_path: Path, *, as_json: bool
) -> None:
    path = write(tmp_path / "runs.csv", ONE.replace("64", "0"), ONE.replace("350", "-1"))
    code, out, err = run("validate", "--runs", path, *(["--json"] if as_json else []))
    assert code == 3
    assert "file must hold a run that can be read, got 2 refused rows" in err
    reasons = [row["refused_reason"] for row in json.loads(out)["rows"]] if as_json else []
    assert ("sub_batch must be" in reasons[0] and "value must be" in reasons[1]) if as_json else out == ""


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (HEADER.replace("metric", "metrik"), "did you mean 'metric'"),
        (HEADER.replace("metric", "notes"), "column metric"),
        ("", "line 1"),
    ],
)
def test_wrong_header_is_exit_3(run: Run, tmp_path: Path, header: str, words: str) -> None:
    code, out, err = run("validate", "--runs", write(tmp_path / "runs.csv", ONE, header=header), "--json")
    assert (code, json.loads(out)["format"]) == (3, "planner/error")
    assert words in err


def test_runs_must_be_given(run: Run) -> None:
    assert run("validate") == (
        2, "", "planner: --runs must be given, got nothing; name a table of measured runs\n",
    )  # fmt: skip


def test_an_unknown_calibration_is_a_usage_error(run: Run, tmp_path: Path) -> None:
    code, out, err = run("validate", "--runs", write(tmp_path / "runs.csv", ONE), "--calibration", "v100")
    assert (code, out) == (2, "")
    assert "calibration must be a known name" in err


def test_hold_out_refits_without_each_group(run: Run, tmp_path: Path) -> None:
    """Steps of two networks take three times what is predicted: each network is told by the other alone."""
    plans = [(network, n) for network in ("resnet18", "vgg11") for n in (8, 64)]

    def table(values: list[float]) -> str:
        rows = (
            f"{network}-{n},s,{network},dgx1-v100,1,1,{n},fp32,sync,iteration_s,{value},ok,"
            for (network, n), value in zip(plans, values, strict=True)
        )
        return write(tmp_path / "runs.csv", *rows)

    wanted = document(run, "--runs", table([1.0] * 4))["rows"]
    path = table([3 * row["predicted"] for row in wanted])
    assert document(run, "--runs", path)["summary"]["mape"] == pytest.approx(2 / 3)
    code, out, err = run("validate", "--runs", path, "--hold-out", "network", "--json")
    assert code == 0
    assert "fitting end-to-end coefficients without each network in turn" in err
    found = json.loads(out)
    assert (found["hold_out"], found["summary"]["n"]) == ("network", 4)
    assert found["summary"]["mape"] < 0.4


def test_hold_out_refuses_where_nothing_is_left_to_fit_to(run: Run, tmp_path: Path) -> None:
    path = write(tmp_path / "runs.csv", ONE, EIGHT)
    code, out, err = run("validate", "--runs", path, "--hold-out", "gpu")
    assert (code, out) == (2, "")
    assert err.splitlines()[-1] == (
        "planner: --hold-out gpu must be given beside measured runs with another gpu, to fit to, "
        "got 'runs of GV100 alone'; name files of such runs by --fit-on"
    )


def test_hold_out_fits_on_the_other_files_of_the_folder_or_on_those_named(run: Run, tmp_path: Path) -> None:
    """Beside: steps of another network that take three times as long. Elsewhere: as long as is predicted."""
    folder, elsewhere = tmp_path / "runs", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    own = write(folder / "own.csv", ONE, EIGHT)
    other = ONE.replace("one,s,resnet50", "two,t,resnet18").replace("350,ok,g", "VALUE,ok,")
    rate = document(run, "--runs", write(tmp_path / "ask.csv", other.replace("VALUE", "1")))["rows"][0]["predicted"]
    write(folder / "beside.csv", other.replace("VALUE", str(rate / 3)))
    write(folder / "no-runs.csv", "1,2", header="a,b")
    named = write(elsewhere / "named.csv", other.replace("VALUE", str(rate)))
    hold_out = ("validate", "--runs", own, "--hold-out", "source", "--json")
    by_folder, by_name = (json.loads(run(*hold_out, *more)[1])["rows"] for more in ((), ("--fit-on", named)))
    assert all(one["predicted"] < 0.8 * two["predicted"] for one, two in zip(by_folder, by_name, strict=True))
    (folder / "SOURCES.toml").write_text("[t]\nfitted = false\n")
    assert run(*hold_out)[0] == 2
    assert run(*hold_out, "--fit-on", str(folder / "no-runs.csv"))[0] == 3


def test_files_to_fit_on_need_a_group_to_leave_out(run: Run, tmp_path: Path) -> None:
    path = write(tmp_path / "runs.csv", ONE)
    code, out, err = run("validate", "--runs", path, "--fit-on", path)
    assert (code, out) == (2, "")
    assert err.startswith("planner: --hold-out must be given where --fit-on is, got nothing")


def test_a_file_with_a_wrong_header_does_not_stop_the_others(run: Run, tmp_path: Path) -> None:
    good = write(tmp_path / "good.csv", ONE)
    bad = write(tmp_path / "bad.csv", ONE, header=HEADER.replace("network", "netwrk"))
    code, out, err = run("validate", "--runs", bad, "--runs", good, "--json")
    assert code == 3
    assert "did you mean 'network'" in err
    assert [row["id"] for row in json.loads(out)["rows"]] == ["one"]
    code, out, err = run("validate", "--runs", bad, "--json")
    assert (code, json.loads(out)["format"]) == (3, "planner/error")
    assert json.loads(out)["message"] in err


def test_rows_in_8_bits_are_answered_by_the_peak_rate_with_a_note(run: Run, tmp_path: Path) -> None:
    rows = [f"{one},s,gpt2,dgx-h100,1,8,8,{one},sync,samples_per_s,1500,ok," for one in ("bf16", "fp8", "int8")]
    code, out, err = run("validate", "--runs", write(tmp_path / "runs.csv", *rows), "--json")
    assert code == 0
    found = json.loads(out)["rows"]
    assert [row["id"] for row in found] == ["bf16", "fp8", "int8"]
    assert all(row["low"] < row["predicted"] < row["high"] for row in found)
    for precision in ("fp8", "int8"):
        assert (
            f"precision {precision!r} was not measured on h100-sxm5-80gb: its runs are answered by its peak rate" in err
        )
    assert "'bf16'" not in err


def test_a_row_of_an_unknown_framework_is_one_of_any_with_a_note(run: Run, tmp_path: Path) -> None:
    """As an option the same name is refused."""
    rows = [f"{ONE.replace('one', name, 1)},{name}" for name in ("generic", "mine", "PyTorch", "pytorch")]
    path = write(tmp_path / "runs.csv", *rows, header=f"{HEADER},framework")
    code, out, err = run("validate", "--runs", path, "--json")
    assert code == 0
    predicted = [row["predicted"] for row in json.loads(out)["rows"]]
    assert predicted[0] == predicted[1] != predicted[2] == predicted[3]
    assert err.count("framework must be a known name, got 'mine'") == 1
    assert "its runs are answered as those of 'generic'" in err.lower()
    assert json.loads(out)["unknown_frameworks"] == {"mine": 1}
    assert "unknown frameworks  mine (1): answered as any framework" in run("validate", "--runs", path)[1]
    code, out, err = run("validate", "--runs", path, "--framework", "pytroch")
    assert (code, out) == (2, "")
    assert "framework must be a known name, got 'pytroch'; did you mean 'pytorch'?" in err


def test_a_row_may_name_a_file_beside_it_that_declares_a_framework(run: Run, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text('format = "planner/framework"\nversion = 1\nname = "own"\n')
    written = ("own.toml", "generic", "missing.toml", "mxnet")
    rows = [f"{ONE.replace('one', name, 1)},{name}" for name in written]
    path = write(tmp_path / "runs.csv", *rows, header=f"{HEADER},framework")
    own, generic, missing, mxnet = json.loads(run("validate", "--runs", path, "--json")[1])["rows"]
    assert own["predicted"] == generic["predicted"]
    assert mxnet["predicted"] is not None
    assert "missing.toml" in missing["refused_reason"]


def test_rows_of_a_locked_source_are_in_sums_alone(run: Run, tmp_path: Path) -> None:
    (tmp_path / "SOURCES.toml").write_text("[s]\nlocked = true\n[t]\n")
    other = ONE.replace("one,s,resnet50", "other,t,resnet101").replace(",350,", ",200,").replace(",g", ",h")
    path = write(tmp_path / "runs.csv", ONE, EIGHT, other)
    found, bare = document(run, "--runs", path), tmp_path / "bare" / "runs.csv"
    bare.parent.mkdir()
    whole = document(run, "--runs", write(bare, ONE, EIGHT, other))
    sums = ("summary", "ranking", "rankings", "memory", "in_sample")
    assert {key: found[key] for key in sums} == {key: whole[key] for key in sums}
    assert found["locked"] == {"sources": ["s"], "rows": 2, "predicted": 2}
    assert "locked" not in whole
    assert [row["id"] for row in found["rows"]] == ["other"]
    assert found["groups"] == []
    assert {*found["by"]["network"]} == {"resnet101"}
    assert found["by"]["source"] == whole["by"]["source"]
    code, out, _ = run("validate", "--runs", path)
    assert code == 0
    assert "3: 3 predicted, 0 refused" in out
    assert "2 of s: shown as sums only, as nobody may look at them row by row" in " ".join(out.split())
    worst = out[out.index("Worst rows") :]
    assert "one" not in worst.replace("none", "")
    code, out, _ = run("validate", "--runs", write(tmp_path / "locked.csv", ONE, EIGHT))
    assert "Worst rows" not in out
    assert "By network" not in out
    code, _, err = run("validate", "--runs", str(tmp_path / "locked.csv"), "--plot", str(tmp_path / "p.svg"))
    assert (code, "--plot must be given for rows with a predicted and a measured time, got none" in err) == (2, True)


def test_plans_are_ranked_beside_chance_and_rules(run: Run, tmp_path: Path) -> None:
    """Of five plans of which more nodes are faster as measured; a group of two stands apart."""
    rows = [
        f"n{nodes},s,resnet50,dgx1-v100,{nodes},8,64,fp32,sync,samples_per_s,{2000 * nodes**0.9:.0f},ok,g"
        for nodes in (1, 2, 3, 4, 8)
    ]
    small = [f"small-{row}all" for row in rows[:2]]
    path = write(tmp_path / "runs.csv", *rows, *small)
    rankings = {(one["plans"], one["order"]): one for one in document(run, "--runs", path)["rankings"]}
    orders = ("this program", "random order", "fewest nodes", "most nodes")
    assert list(rankings) == [(plans, order) for plans in ("5 or more", "2 to 4") for order in orders]
    assert {one["groups"] for one in rankings.values()} == {1}
    assert rankings["5 or more", "most nodes"]["spearman"] == pytest.approx(1)
    assert rankings["5 or more", "fewest nodes"]["spearman"] == pytest.approx(-1)
    assert rankings["5 or more", "random order"]["spearman"] == 0
    assert rankings["5 or more", "random order"]["top1"] == pytest.approx(1 / 5)
    assert rankings["2 to 4", "fewest nodes"]["regret_mean"] == pytest.approx(2**0.9 - 1, rel=1e-3)
    out = run("validate", "--runs", path)[1]
    assert "Beside an order by chance and rules of one line" in out
    assert max(map(len, out.splitlines())) <= 80


def test_fitted_numbers_stand_beside_errors_and_why_no_coverage_is_known(run: Run, tmp_path: Path) -> None:
    rows = [
        f"{network}{batch},s,{network},dgx1-v100,1,8,{batch},fp32,sync,samples_per_s,{rate * batch},ok,g"
        for network, rate in (("resnet50", 40), ("vgg16", 20), ("alexnet", 300))
        for batch in (32, 64)
    ]
    path = write(tmp_path / "runs.csv", *rows)
    found = document_of_hold_out(run, path)
    assert found["free_numbers"] >= 1
    out = run("validate", "--runs", path, "--hold-out", "network")[1]
    assert f"Fitted numbers behind these errors: {found['free_numbers']}" in out
    assert "free_numbers" not in document(run, "--runs", path)
    empty = run("validate", "--runs", write(tmp_path / "asked.csv", ONE.replace("resnet50", "resnet49")))[1]
    assert "Of held-out rows no coverage is known: none was predicted and gave a value" in " ".join(empty.split())


def document_of_hold_out(run: Run, path: str) -> dict[str, Any]:
    code, out, _ = run("validate", "--runs", path, "--hold-out", "network", "--json")
    assert code == 0
    found: dict[str, Any] = json.loads(out)
    return found
