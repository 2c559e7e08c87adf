from pathlib import Path

import pytest

from planner.formats.samples import read_sample_files, read_samples
from validation.convert_kernels import main

CONVOLUTION = """gpu,N,C,H,W,K,R,S,pad_h,pad_w,stride_h,stride_w,precision,direction,time_ms,application
Tesla V100,16,64,56,56,128,3,3,1,1,2,1,fp32,fwd,2.5,Resnet
Tesla V100,16,64,56,56,128,3,3,1,1,2,1,fp32,fwd,2.5,Vision
Tesla V100,16,3,224,224,64,7,7,3,3,2,2,fp32,bwd_data,1.0,Vision
Tesla V100,8,64,56,56,64,1,1,0,0,1,1,"fp16 (tensor, fp32 add)",bwd_weight,0.1,Face
Tesla P100,8,64,56,56,64,1,1,0,0,1,1,fp32,fwd,0.1,Face
"""
GEMM = """source,gpu,op,M,N,K,transA,transB,precision,time_ms,application
DeepBench,Tesla V100,gemm,1760,16,2048,N,T,fp32,0.04,DeepSpeech
"""
POINTWISE = """source,gpu,op,precision,direction,B,H,time_ms
NeuSight,Tesla V100-PCIE-32GB,add,fp32,fwd,1000,50,0.7
NeuSight,Tesla V100-PCIE-32GB,relu,fp32,fwd,1000,50,0.5
NeuSight,Tesla V100-PCIE-32GB,softmax,fp32,fwd,1000,50,0.5
"""


def write_tables(folder: Path) -> None:
    (folder / "deepbench_conv.csv").write_text(CONVOLUTION)
    (folder / "deepbench_gemm.csv").write_text(GEMM)
    (folder / "neusight_elementwise_kernels.csv").write_text(POINTWISE)


def test_published_tables_become_samples(tmp_path: Path) -> None:
    write_tables(tmp_path)
    assert main(["--data", str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    convolution = read_samples(tmp_path / "out" / "convolution.csv")
    assert convolution.text["group"].tolist() == ["Resnet", "Face"]
    assert convolution.text["precision"].tolist() == ["fp32", "fp16"]
    assert convolution.text["direction"].tolist() == ["forward", "backward_weight"]
    sizes = {name: convolution.number[name].tolist() for name in ("images", "out_c", "stride_h", "stride_w", "time_s")}
    assert sizes == {
        "images": [16, 8], "out_c": [128, 64], "stride_h": [2, 1], "stride_w": [1, 1], "time_s": [2.5e-3, 1e-4]
    }  # fmt: skip
    assert convolution.circumstances["origin"] == "published"
    gemm = read_samples(tmp_path / "out" / "gemm.csv")
    assert [gemm.number[name].tolist() for name in ("m", "n", "k")] == [[1760], [16], [2048]]
    pointwise = read_samples(tmp_path / "out" / "pointwise.csv")
    assert pointwise.number["bytes"].tolist() == [3 * 4 * 50000, 2 * 4 * 50000]


def test_converted_files_are_read_together_for_one_fit(tmp_path: Path) -> None:
    write_tables(tmp_path)
    main(["--data", str(tmp_path), "--out", str(tmp_path / "out")])
    together = read_sample_files(sorted((tmp_path / "out").glob("*.csv")))
    assert together.size == 5
    assert [together.circumstances["source"].count(f"{name} (") for name in ("DeepBench", "NeuSight")] == [1, 1]
    assert together.circumstances["warning"].startswith("FP16 training is predicted too fast")


def test_missing_table_says_where_to_get_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--data", str(tmp_path), "--out", str(tmp_path / "out")]) == 3
    assert "deepbench_conv.csv: table must be there" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--help"])
    printed = capsys.readouterr().out
    assert "baidu-research/DeepBench" in printed
    assert "sitar-lab/NeuSight" in printed
