from pathlib import Path

import numpy as np
import pytest

from planner.domain.samples import Samples
from validation.kernel_choice import choices
from validation.kernel_rows import TABLES, Table
from validation.kernel_scores import (
    MEDIAN,
    Key,
    Score,
    batch_scores,
    beyond_scores,
    measured_batches,
    measured_samples,
    new_shapes,
    ratio_scores,
    sibling_batch_scores,
    sibling_scores,
)
from validation.kernels import main, report, target

HEADERS = {
    "deepbench_conv.csv": "gpu,N,C,H,W,K,R,S,pad_h,pad_w,stride_h,stride_w,precision,direction,time_ms,application",
    "deepbench_gemm.csv": "gpu,M,N,K,transA,transB,precision,time_ms,application",
    "neusight_gemm_kernels.csv": "gpu,op,B,M,K_reduce,N_out,time_ms,split",
    "neusight_elementwise_kernels.csv": "gpu,op,B,H,time_ms",
    "vidur_gemm_fp16.csv": "gpu,M,N,K,precision,time_ms",
    "attention_modern.csv": "gpu,kernel,direction,causal,head_dim,seq_len,batch,heads,tflops_per_s",
}


def products(device: str, scale: float = 1.0, bent: float = 0.0) -> Samples:
    """Return products of four layers at four batches: a time linear in n, but for what bends it."""
    rows = [
        {
            "kind": "gemm", "precision": "fp32", "device": device, "m": m, "n": n, "k": 512, "batch": 1,
            "group": f"layer {m}", "time_s": scale * m * (1e-6 + 1e-8 * n) * (1 + bent * (n == 16)),
        }
        for m in (64, 128, 256, 512) for n in (8, 16, 32, 64)
    ]  # fmt: skip
    return Samples.from_rows(list(rows), {})


def between(samples: Samples) -> tuple[Score, ...]:
    """Return the scores between measured batches."""
    return tuple(batch_scores(measured_batches({"t4": samples})))


def test_between_measured_batches_a_line_is_drawn() -> None:
    line, _ = between(products("t4"))
    assert (line.key, line.rows) == (Key("t4", "gemm", "", "fp32", "line"), 8)
    assert line.worst < 1e-12
    line, _ = between(products("t4", bent=0.25))
    assert line.worst > 0.1


def tiled() -> Samples:
    """Return products on tiles of 128 x 64, at four batches."""
    rows = [
        {
            "kind": "gemm", "precision": "fp32", "m": m, "n": n, "k": k, "batch": 1, "group": f"layer {m} {k}",
            "time_s": 2e-5 + 2 * m * n * k * 1e-13 + 2 * 128 * np.ceil(m / 128) * 64 * np.ceil(n / 64) * k * 1e-12,
        }
        for m in (64, 300, 512, 2048) for n in (8, 64, 100, 1024) for k in (64, 512, 3000)
    ]  # fmt: skip
    return Samples.from_rows(list(rows), {})


def test_ratios_to_the_entry_follow_what_a_line_between_batches_does_not() -> None:
    line, ratio = between(tiled())
    assert (line.key.other, ratio.key.other) == ("line", "ratio")
    assert line.rows == ratio.rows == 24
    assert ratio.worst < 0.01 < line.mean


def test_beyond_measured_batches_only_those_within_a_factor_of_two_count() -> None:
    """Of 8, 64, 100, 1024 that is 100 behind 8 and 64, and 64 before 100 and 1024."""
    scores = {score.key: score for score in beyond_scores(measured_batches({"t4": tiled(), "l4": tiled()}))}
    for side in ("all, above", "all, below"):
        line, ratio = (scores[Key(side, "gemm", "", "fp32", way)] for way in ("line", "ratio"))
        assert line.rows == ratio.rows == 2 * 12
        assert ratio.worst < 0.01 < line.mean
    assert len(scores) == 4


def test_choosing_anew_without_each_part_is_what_a_linear_machine_does_not_mind() -> None:
    (choice,) = choices({"t4": products("t4")}, ["t4"])
    assert (choice.key.kind, choice.rows) == ("gemm", 16)
    assert max(choice.once, choice.anew) < 1e-6


def test_a_sibling_is_known_by_the_ratio_of_the_other_groups() -> None:
    mine, theirs = products("titan-xp", scale=0.5), products("gtx-1080ti")
    samples = {"titan-xp": mine, "gtx-1080ti": theirs}
    for score, other in zip(
        sibling_scores(samples, {"titan-xp": "gtx-1080ti"}), (f"gtx-1080ti, {MEDIAN}", "gtx-1080ti"), strict=True
    ):
        assert (score.key.other, score.rows) == (other, 16)
        assert score.worst < 1e-12
    odd = mine.number["m"] == 512  # one layer of another ratio: it has no say in its own prediction
    times = np.where(odd, 2 * mine.time_s, mine.time_s)
    samples["titan-xp"] = Samples(mine.text, {**mine.number, "time_s": times}, {})
    median, _ = sibling_scores(samples, {"titan-xp": "gtx-1080ti"})
    assert median.worst == pytest.approx(0.5)
    assert median.mean == pytest.approx(0.5 / 4)


def test_a_sibling_follows_what_bends_both() -> None:
    """Unless its ratio differs by more than the fit, made without the layer, misses."""
    pair = {"titan-xp": "gtx-1080ti"}
    for apart, follows in ((1.0, True), (3.0, False)):
        mine, theirs = products("titan-xp", 0.5, bent=0.25), products("gtx-1080ti", bent=0.25)
        times = np.where(mine.number["m"] < 200, apart * mine.time_s, mine.time_s)
        both = {"titan-xp": Samples(mine.text, {**mine.number, "time_s": times}, {}), "gtx-1080ti": theirs}
        ratio, told = sibling_batch_scores(both, pair, measured_batches({"titan-xp": both["titan-xp"]}))
        assert (ratio.key.other, told.key.other) == ("ratio", "gtx-1080ti")
        assert (told.worst < 1e-9) == follows
        assert ratio.worst > 0.05


def test_ratios_to_a_sibling_are_scored_beside_the_fit_alone() -> None:
    """One that is twice as slow at every call but odd ones, which the calls in common tell and the fit does not."""
    theirs = products("gtx-1080ti")
    crooked = np.where(np.arange(theirs.size) % 3 == 0, 1.5, 1.0) * theirs.time_s
    both = {
        gpu: Samples(theirs.text, {**theirs.number, "time_s": scale * crooked}, {})
        for gpu, scale in (("titan-xp", 2.0), ("gtx-1080ti", 1.0))
    }
    scores = {score.key.other: score for score in ratio_scores(both, {"titan-xp": "gtx-1080ti"})}
    assert {score.key.gpu for score in scores.values()} == {"all"}
    assert scores["5 calls"].worst < 1e-9
    assert scores["5 calls"].mean < scores["ratio of the fit"].mean < scores["the fit"].mean


def test_short_element_wise_kernels_do_not_count_and_batches_stand_apart() -> None:
    rows = [
        {
            "kind": "activation", "direction": "forward", "precision": "fp32", "elements": n, "traffic": 2 * n,
            "fixed_bytes": 0, "group": f"rows {n}", "time_s": 1e-5 + 1e-10 * n,
        }
        for n in (10**4, 10**5, 10**7, 10**8, 10**9)
    ]  # fmt: skip
    single = products("t4")
    several = Samples(single.text, {**single.number, "batch": np.full(single.size, 64.0)}, {})
    samples = Samples.from_rows(list(rows), {}).joined(single).joined(several)
    scores = {score.key.kind: score for score in new_shapes({"t4": samples})}
    assert set(scores) == {"activation", "gemm", "gemm, batched"}
    assert scores["activation"].rows == 3
    assert scores["activation"].worst < 1e-6


def test_targets() -> None:
    for kind, precision, aim in (
        ("add", "fp32", 0.005), ("softmax", "fp32", 0.08), ("gemm", "fp16", 0.1), ("convolution", "fp32", 0.2),
        ("convolution", "fp16", 0.31),
    ):  # fmt: skip
        assert target(Key("t4", kind, "forward", precision)) == aim


def test_page_has_rows_measured_on_the_gpu_itself_alone() -> None:
    vidur = [
        {
            "gpu": "A100-SXM4-80GB", "M": str(m), "N": str(n), "K": "64", "precision": "fp16/bf16",
            "time_ms": f"{m * n}e-6",
        }
        for m in (64, 128, 256) for n in (64, 256, 1024)
    ]  # fmt: skip
    tables: dict[str, Table] = {name: vidur if name == "vidur_gemm_fp16.csv" else () for name in TABLES}
    assert set(measured_samples(tables)) == {"a100-sxm4-80gb"}  # which stands in for three more
    page = report(tables)
    lines = [line for line in page.splitlines() if line.startswith("| a100-sxm4-80gb | gemm | any | fp16 |")]
    assert len(lines) == 1
    assert "10.0" in lines[0]
    others = [f"| a100-sxm4-80gb | {way} | gemm | any | fp16 |" for way in ("line", "ratio")]
    assert [sum(line.startswith(start) for line in page.splitlines()) for start in others] == [1, 1]


def test_page_tells_siblings_apart_by_kind() -> None:
    gemm = [
        {
            "gpu": gpu, "M": str(m), "N": str(n), "K": "64", "transA": "N", "transB": "N", "precision": "fp32",
            "time_ms": f"{scale * m * n}e-6", "application": "Speech",
        }
        for gpu, scale in (("Titan Xp", 1), ("GTX 1080 Ti", 2)) for m in (64, 128, 256) for n in (64, 256, 1024)
    ]  # fmt: skip
    tables: dict[str, Table] = {name: gemm if name == "deepbench_gemm.csv" else () for name in TABLES}
    lines = [line for line in report(tables).splitlines() if line.startswith("| sibling GPU")]
    assert lines == ["| sibling GPU, products | 1 | 0.00 | 4.0 | yes | 1 |"]


@pytest.mark.parametrize("missing", TABLES)
def test_without_the_data_one_sentence_says_where_it_is(
    missing: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, header in HEADERS.items():
        if name != missing:
            (tmp_path / name).write_text(header + "\n")
    assert main(["--data", str(tmp_path), "--out", str(tmp_path / "kernels.md")]) == 3
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert f"{missing}: table must be there" in error
    assert "github.com/" in error
    assert not (tmp_path / "kernels.md").exists()
