import re
from pathlib import Path

import pytest

from planner import catalog
from planner.domain.samples import COMMAND
from planner.formats.samples import read_sample_files, read_samples
from validation import convert_kernels
from validation.attention_rows import FLASH_ATTENTION
from validation.convert_kernels import BOARDS, main
from validation.kernel_outliers import stale_cells
from validation.kernel_rows import DEEPBENCH, NEUSIGHT, TABLES

V100, P100 = "v100-sxm2-16gb", "p100-pcie-16gb"
CONVOLUTION = """gpu,N,C,H,W,K,R,S,pad_h,pad_w,stride_h,stride_w,precision,direction,time_ms,application
Tesla P100,8,64,56,56,64,1,1,0,0,1,1,fp32,fwd,0.1,
Tesla P100,8,64,56,56,64,1,1,0,0,1,1,"fp16 storage, fp32 math",fwd,0.2,
Tesla P100,16,3,224,224,64,7,7,3,3,2,2,fp32,bwd_data,1.0,
Tesla T4,16,64,56,56,128,3,3,1,1,2,1,fp32,fwd,5.0,Resnet
Tesla V100,16,64,56,56,128,3,3,1,1,2,1,fp32,fwd,2.5,Resnet
Tesla V100,16,64,56,56,128,3,3,1,1,2,1,fp32,fwd,2.5,Vision
Tesla V100,16,3,224,224,64,7,7,3,3,2,2,fp32,bwd_data,1.0,Vision
Tesla V100,8,64,56,56,64,1,1,0,0,1,1,"fp16 (tensor, fp32 add)",bwd_weight,0.1,Face
"""
GEMM = """source,gpu,op,M,N,K,transA,transB,precision,time_ms,application
DeepBench,Tesla P100,gemm,1760,16,2048,N,T,fp32,0.08,
DeepBench,Tesla T4,gemm,1760,16,2048,N,T,fp32,0.09,DeepSpeech
DeepBench,Tesla V100,gemm,1760,16,2048,N,T,fp32,0.04,DeepSpeech
"""
POINTWISE = """source,gpu,op,precision,direction,B,H,time_ms
NeuSight,Tesla V100-PCIE-32GB,add,fp32,fwd,1000,50,0.7
NeuSight,Tesla V100-PCIE-32GB,relu,fp32,fwd,1000,50,0.5
NeuSight,Tesla V100-PCIE-32GB,softmax,fp32,fwd,1000,50,0.5
NeuSight,Tesla P100-PCIE-16GB,relu,fp32,fwd,1000,50,0.6
NeuSight,Tesla T4,relu,fp32,fwd,1000,50,1.5
NeuSight,Tesla T4,ln,fp32,fwd,1000,50,1.5
"""
PRODUCTS = """source,gpu,op,precision,direction,B,M,K_reduce,N_out,time_ms,split
NeuSight,Tesla V100-PCIE-32GB,linear,fp32,fwd,1,512,1024,3072,0.5,test
NeuSight,Tesla T4,bmm,fp32,fwd,96,512,64,128,0.3,test
NeuSight,NVIDIA L4,linear,fp32,fwd,1,512,1024,3072,0.4,test
NeuSight,NVIDIA L4,linear,fp32,fwd,1,17,13,141,0.1,train
"""
VIDUR = """source,gpu,op,layer,M,N,K,precision,direction,time_ms,n,model,tp
vidur,A40,gemm,qkv,16,12288,4096,fp16/bf16,fwd,0.2,16,Llama-2-7b-hf,1
"""
ATTENTION = """source,gpu,kernel,direction,causal,head_dim,seq_len,batch,heads,precision,tflops_per_s,time_ms,notes
FlashAttention,A100 80GB SXM4,FlashAttention-2,fwd+bwd,1,128,4096,4,16,fp16/bf16,173,,
FlashAttention,H100 80GB SXM5,FlashAttention-2,fwd+bwd,1,128,4096,4,16,fp16/bf16,294,,
FlashAttention,H100 80GB SXM5,FlashAttention-2,fwd,1,128,4096,4,16,fp16,319,,
"""
OTHERS = {
    "deepbench_gemm.csv": GEMM, "neusight_elementwise_kernels.csv": POINTWISE, "neusight_gemm_kernels.csv": PRODUCTS,
    "vidur_gemm_fp16.csv": VIDUR, "attention_modern.csv": ATTENTION,
}  # fmt: skip


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tmp_path = tmp_path_factory.mktemp("tables")
    (tmp_path / "deepbench_conv.csv").write_text(CONVOLUTION)
    for name, text in OTHERS.items():
        (tmp_path / name).write_text(text)
    assert main(["--data", str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    return tmp_path / "out"


def test_published_tables_become_samples(out: Path) -> None:
    convolution = read_samples(out / V100 / "convolution.csv")[0]
    assert convolution.text["group"].tolist() == ["Resnet", "Face"]
    assert convolution.text["precision"].tolist() == ["fp32", "fp16"]
    assert convolution.text["direction"].tolist() == ["forward", "backward_weight"]
    sizes = {name: convolution.number[name].tolist() for name in ("images", "out_c", "stride_h", "stride_w", "time_s")}
    assert sizes == {
        "images": [16, 8], "out_c": [128, 64], "stride_h": [2, 1], "stride_w": [1, 1], "time_s": [2.5e-3, 1e-4]
    }  # fmt: skip
    assert convolution.circumstances["origin"] == "published"
    gemm = read_samples(out / V100 / "gemm.csv")[0]
    assert [gemm.number[name].tolist() for name in ("m", "n", "k")] == [[1760], [16], [2048]]
    pointwise = read_samples(out / V100 / "pointwise.csv")[0]
    assert pointwise.text["kind"].tolist() == ["add", "activation", "softmax"]
    assert pointwise.number["traffic"].tolist() == [3 * 50000, 2 * 50000, 2 * 50000]
    assert set(pointwise.number["fixed_bytes"]) == {0}


def test_a_convolution_in_fp16_storage_takes_no_longer_than_in_fp32(out: Path) -> None:
    convolution = read_samples(out / P100 / "convolution.csv")[0]
    assert convolution.text["precision"].tolist() == ["fp32", "fp16"]
    assert convolution.number["time_s"].tolist() == [1e-4, 1e-4]
    assert [bool(note) for note in convolution.text["notes"].tolist()] == [False, True]


def test_products_of_language_models_are_turned_and_their_random_ones_left_out(out: Path) -> None:
    linear = read_samples(out / "l4" / "gemm.csv")[0]
    assert [linear.number[name].tolist() for name in ("m", "n", "k", "batch")] == [[3072], [512], [1024], [1]]
    batched = read_samples(out / "t4" / "gemm.csv")[0]
    assert [batched.number[name].tolist()[1] for name in ("m", "n", "k", "batch")] == [512, 128, 64, 96]
    half = read_samples(out / "a40" / "gemm.csv")[0]
    assert half.text["precision"].tolist() == ["fp16", "bf16"]
    assert [half.number[name].tolist() for name in ("m", "n", "k")] == [[12288] * 2, [16] * 2, [4096] * 2]


def test_fused_attention_of_a_board_stands_in_a_file_of_its_own(out: Path) -> None:
    for name in ("h100-sxm5-80gb", "a100-sxm4-80gb"):
        every = read_samples(out / name / "attention.csv")[0]
        attention = every.select(every.text["source"] == FLASH_ATTENTION)
        assert attention.text["direction"].tolist() == ["forward", "backward_data"] * 2
        assert attention.text["precision"].tolist() == ["fp16"] * 2 + ["bf16"] * 2
        columns = ("batch", "queries", "keys", "width", "causal")
        assert [set(attention.number[column]) for column in columns] == [{64}, {4096}, {4096}, {128}, {1}]
    assert not (out / "t4" / "attention.csv").exists()


def test_single_products_of_a_board_come_from_one_table(out: Path) -> None:
    assert set(read_samples(out / V100 / "gemm.csv")[0].text["source"]) == {DEEPBENCH}
    assert set(read_samples(out / "l4" / "gemm.csv")[0].text["source"]) == {NEUSIGHT}


def cells(times: dict[str, list[float]]) -> list[dict[str, str]]:
    """Return one row a GPU and shape, all of one precision and direction."""
    return [
        {"gpu": gpu, "N": str(at), "precision": "fp32", "direction": "fwd", "time_ms": str(time)}
        for gpu, column in times.items()
        for at, time in enumerate(column)
    ]


def test_cells_off_the_usual_ratio_to_a_sibling_are_stale_either_way() -> None:
    table = cells({"other": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], "gpu": [2.0, 4.1, 18.0, 8.0, 2.0, 12.1]})
    stale = {cell.place - 6: cell.factor for cell in stale_cells(table, "gpu", "other", ["N"])}
    assert stale == pytest.approx({2: 3.0, 4: 0.2}, rel=0.05)
    assert stale_cells(table, "gpu", "", ["N"]) == ()
    assert stale_cells(table, "gpu", "third", ["N"]) == ()


def test_a_ratio_that_spreads_anyway_makes_no_cell_stale() -> None:
    table = cells({"other": [1.0] * 6, "gpu": [1.0, 1.6, 0.6, 1.5, 0.7, 1.0]})
    assert stale_cells(table, "gpu", "other", ["N"]) == ()


def test_stale_rows_are_left_out_listed_and_counted(tmp_path: Path) -> None:
    header = CONVOLUTION.splitlines()[0]
    rows = [
        f"{gpu},{n},64,56,56,64,3,3,1,1,1,1,fp32,fwd,{scale * n},Resnet"
        for gpu, scale in (("GTX 1080 Ti", 0.1), ("Tesla M40", 0.3))
        for n in (1, 2, 4, 8)
    ]
    rows[-1] = rows[-1].replace("2.4", "9.6")
    (tmp_path / "deepbench_conv.csv").write_text("\n".join([header, *rows]) + "\n")
    for name, text in OTHERS.items():
        (tmp_path / name).write_text(text)
    assert main(["--data", str(tmp_path), "--out", str(tmp_path / "out"), "--gpu", "m40"]) == 0
    samples = read_samples(tmp_path / "out" / "m40" / "convolution.csv")[0]
    assert samples.number["images"].tolist() == [1, 2, 4]
    assert samples.circumstances["rejected"].startswith("1 rows of DeepBench at least 1.5 times off")
    listed = (tmp_path / "out" / "m40" / "rejected.txt").read_text().splitlines()
    assert len(listed) == 1
    assert listed[0].startswith("deepbench_conv.csv: Tesla M40 fp32 fwd N=8 ")
    assert listed[0].endswith("9.6 ms, 4.00 times the usual ratio")


def test_every_board_is_an_accelerator() -> None:
    assert {board.name for board in BOARDS} <= set(catalog.names("accelerators"))


def test_samples_say_what_makes_the_calibration_again_as_the_bundled_one_does(out: Path) -> None:
    for name in (V100, P100, "t4", "l4", "a40"):
        said = read_sample_files(sorted((out / name).glob("*.csv"))).samples.circumstances[COMMAND]
        assert said == catalog.find_calibration(name).environment[COMMAND]
        assert f"--gpu {name} && " in said


def test_every_board_has_its_own_rows(out: Path) -> None:
    assert sorted(folder.name for folder in out.iterdir()) == sorted(board.name for board in BOARDS)
    times = {V100: [0.04e-3], "t4": [0.09e-3], P100: [0.08e-3], "p100-sxm2-16gb": [0.08e-3]}
    for name, expected in times.items():
        gemm = read_samples(out / name / "gemm.csv")[0]
        assert gemm.number["time_s"].tolist()[:1] == pytest.approx(expected)
        assert set(gemm.text["device"]) == {name}


def test_applications_come_by_shape_where_the_sheet_has_none(out: Path) -> None:
    convolution = read_samples(out / P100 / "convolution.csv")[0]
    assert convolution.text["group"].tolist() == ["Face", "Face"]
    assert convolution.text["precision"].tolist() == ["fp32", "fp16"]  # fp16 tensors, sums in fp32
    assert read_samples(out / P100 / "gemm.csv")[0].text["group"].tolist() == ["DeepSpeech 1760x2048"]


def test_gradient_of_the_networks_input_is_left_out(out: Path) -> None:
    for path in out.glob("*/convolution.csv"):
        assert 3.0 not in read_samples(path)[0].number["in_c"].tolist()


def test_rows_that_stand_in_say_so(out: Path) -> None:
    for name, stands_in in (("p100-sxm2-16gb", True), (P100, False)):
        for file in ("convolution.csv", "gemm.csv", "pointwise.csv"):
            notes = read_samples(out / name / file)[0].text["notes"].tolist()
            assert all(("stands in" in note) is stands_in for note in notes)


def test_one_board_is_converted_alone(out: Path) -> None:
    alone = out.parent / "alone"
    assert main(["--data", str(out.parent), "--out", str(alone), "--gpu", "t4"]) == 0
    assert [folder.name for folder in alone.iterdir()] == ["t4"]
    assert (alone / "t4" / "gemm.csv").read_text() == (out / "t4" / "gemm.csv").read_text()


def test_converted_files_are_read_together_for_one_fit(out: Path) -> None:
    together = read_sample_files(sorted((out / V100).glob("*.csv"))).samples
    assert together.size == 6
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


def test_the_tables_that_have_to_be_prepared_are_described() -> None:
    """They are not shipped: the page of calibrations names all, with the columns of the help."""
    text = (Path(__file__).parents[2] / "calibrations" / "README.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+\.csv)` \| .* \| `(gpu, [\w, ]+)` \|$", text, flags=re.MULTILINE))
    assert rows.keys() == TABLES.keys()
    help_text = " ".join((convert_kernels.__doc__ or "").split())
    assert [columns for columns in rows.values() if columns not in help_text] == []
