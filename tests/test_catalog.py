"""Names and paths: what is bundled, what is a user's own, and what happens to a wrong name."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from planner import catalog
from planner.domain.calibration import Calibration, Entry
from planner.domain.precision import PRECISIONS
from planner.errors import InputFileError, ParameterError, UnknownNameError, UsageError
from planner.formats.calibration import CALIBRATION
from planner.formats.network import NETWORK

ASSETS = Path(__file__).parent / "data" / "formats"
WHAT = ("networks", "clusters", "calibrations", "datasets", "accelerators")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty user data folder."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return tmp_path / "planner" / "calibrations"


def make(name: str, accelerator: str, cluster: str | None = None) -> Calibration:
    entry = Entry("kernels", "gemm", "forward", "fp32", "", "flop.rate", {}, {"flop": 1e-12})
    return Calibration(name, accelerator, (entry,), cluster)


def keep(folder: Path, name: str, calibration: Calibration) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(CALIBRATION.dump(calibration))
    return path


@pytest.fixture
def bundled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that stands for the bundled calibrations."""
    folder = tmp_path / "bundled"
    keep(folder, "a-device", make("a-device", "k80"))
    keep(folder, "tsubame-kfc", make("tsubame-kfc", "k80", "tsubame-kfc"))
    keep(folder, "z-other", make("z-other", "v100-sxm2-16gb"))
    monkeypatch.setattr(catalog, "CALIBRATIONS", folder)
    return folder


@pytest.mark.parametrize("what", WHAT)
def test_names_are_sorted_and_every_one_is_found_under_its_name(what: str) -> None:
    finders: dict[str, Callable[[str], object]] = {
        "networks": catalog.find_network, "clusters": catalog.find_cluster, "calibrations": catalog.find_calibration,
        "datasets": catalog.find_dataset, "accelerators": catalog.find_accelerator,
    }  # fmt: skip
    names = catalog.names(what)
    assert list(names) == sorted(names)
    assert [getattr(finders[what](name), "name", None) for name in names] == list(names)


def test_names_of_something_else_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'clusters'"):
        catalog.names("cluster")


@pytest.mark.parametrize(
    ("name", "node", "nics"),
    [
        # Oyama et al., SPRINT slides (2016): 42 nodes, 4X FDR; 1408 nodes of 3 K20X, 2x 4X QDR. NVIDIA DGX-1: 4 EDR.
        ("tsubame-kfc", (42, 8, "k80"), [7e9]),
        ("tsubame-2.5", (1408, 3, "k20x"), [4e9] * 2),
        ("dgx1-v100", (64, 8, "v100-sxm2-16gb"), [12.5e9] * 4),
        # Narayanan et al. (2021): 3072 GPUs, 8 HDR. EC2 G4 instances: 4 T4, 50 Gb/s; 16 in Pollux (2021).
        ("selene", (384, 8, "a100-sxm4-80gb"), [25e9] * 8),
        ("ec2-g4dn-12xlarge", (16, 4, "t4"), [6.25e9]),
        # TACC, Stampede2: SKX nodes of 48 cores, Omni-Path. SDSC, Expanse: 128 cores, HDR100.
        ("stampede2", (1736, 48, "xeon-8160-core"), [12.5e9]),
        ("expanse", (728, 128, "epyc-7742-core"), [12.5e9]),
        # TACC, Frontera: 56 cores, HDR100. Summit user guide: 6 V100, two EDR ports. DGX-2: 8 ports of 100 Gb/s.
        ("frontera", (8368, 56, "xeon-8280-core"), [12.5e9]),
        ("summit", (4608, 6, "v100-sxm2-16gb"), [12.5e9] * 2),
        ("dgx-2", (8, 16, "v100-sxm3-32gb"), [12.5e9] * 8),
        # CSCS, Piz Daint: one P100, Aries. Shi et al. (2019): 8 nodes, 10 GbE.
        ("piz-daint", (5704, 1, "p100-pcie-16gb"), [10.2e9]),
        ("hkbu-k80", (8, 1, "k80"), [1.25e9]),
    ],
)
def test_bundled_clusters_have_the_published_figures(name: str, node: tuple[int, int, str], nics: list[float]) -> None:
    cluster = catalog.find_cluster(name)
    link = cluster.inter_node
    assert link is not None
    assert (cluster.nodes, cluster.node.gpus, cluster.node.accelerator.name) == node
    assert [link.bytes_per_s] * link.nics_per_node == nics
    assert cluster.storage is None
    assert cluster.usd_per_gpu_hour is None


@pytest.mark.parametrize(
    ("name", "cores", "flop_per_s", "memory_gib", "memory_bytes_per_s"),
    [
        ("stampede2", 48, 64 * 2.1e9, 192, 12 * 8 * 2666.67e6),
        ("expanse", 128, 32 * 2.25e9, 256, 16 * 8 * 3200e6),
        ("frontera", 56, 64 * 2.7e9, 192, 12 * 8 * 2933.33e6),
    ],
)
def test_cores_share_what_their_node_has(
    name: str, cores: int, flop_per_s: float, memory_gib: int, memory_bytes_per_s: float
) -> None:
    """Two units of 16, or 8, multiply-adds at the base clock; channels of DDR4 of 8 bytes a transfer."""
    node = catalog.find_cluster(name).node
    core = node.accelerator
    assert (core.kind, node.gpus, node.cpu_threads, node.host_memory_bytes) == (
        "cpu",
        cores,
        2 * cores,
        memory_gib * 2**30,
    )
    assert dict(core.peak_flop_per_s) == {"fp32": pytest.approx(flop_per_s)}
    assert core.memory_bytes * cores == memory_gib * 2**30
    assert core.memory_bytes_per_s * cores == pytest.approx(memory_bytes_per_s, rel=1e-3)


@pytest.mark.parametrize("gpus", [4096, 16384, 131072])
def test_clusters_to_measure_searches_on_are_selene_of_another_size(gpus: int) -> None:
    cluster = catalog.find_cluster(str(Path(__file__).parents[1] / f"benchmarks/clusters/a100-{gpus}.toml"))
    selene = catalog.find_cluster("selene")
    assert cluster.nodes * cluster.node.gpus == gpus
    assert (cluster.node, cluster.intra_node, cluster.inter_node) == (
        selene.node,
        selene.intra_node,
        selene.inter_node,
    )


def test_every_figure_of_bundled_clusters_has_its_source() -> None:
    for cluster in map(catalog.find_cluster, catalog.names("clusters")):
        links = {"intra_node": cluster.intra_node, "inter_node": cluster.inter_node, "host": cluster.host}
        keys = {
            f"links.{name}.{key}" for name, link in links.items() if link for key in ("bandwidth_GBps", "latency_us")
        }
        if cluster.inter_node is not None and cluster.inter_node.flow_bytes_per_s:
            keys |= {"links.inter_node.flow_GBps"}
        if cluster.storage is not None:
            keys |= {"storage.read_GBps"} | ({"storage.cache_GiB"} if cluster.storage.cache_bytes else set())
        of_node = {key for key in cluster.sources if key.partition(".")[0] == "node"}
        assert of_node, cluster.name
        assert set(cluster.sources) >= {"nodes", *keys}, cluster.name
        assert all(cluster.sources.values()), cluster.name
        latencies = [text for key, text in cluster.sources.items() if "latency" in key]
        assert all(text.startswith(("assumed", "measured")) for text in latencies), cluster.name


@pytest.mark.parametrize("name", catalog.names("accelerators"))
def test_bundled_accelerators_are_plausible_and_sourced(name: str) -> None:
    device = catalog.find_accelerator(name)
    rates = device.peak_flop_per_s
    if device.kind == "cpu":  # one core, of a node that the source names
        assert device.source.startswith("one of the")
        assert 5e10 < rates["fp32"] < 2e11
    else:
        assert device.source.startswith(("NVIDIA", "AMD"))
        assert device.multiprocessors is not None
        assert 2.5e12 < rates["fp32"] < 2e14
    known = [precision for precision in PRECISIONS if precision in rates]
    # A narrower precision that a device lists is never slower than fp32.
    assert min(rates[precision] for precision in known) == rates["fp32"]
    assert rates.get("bf16", rates.get("fp16")) == rates.get("fp16")
    # 1 byte a 5 to 400 FLOP: no slip of a unit.
    assert 5 < rates["fp32"] / device.memory_bytes_per_s < 110


@pytest.mark.parametrize(
    ("name", "precisions"),
    [
        ("k80", {"fp32"}), ("k20x", {"fp32"}), ("k40", {"fp32"}), ("m40", {"fp32"}), ("titan-x-maxwell", {"fp32"}),
        ("p100-sxm2-16gb", {"fp32", "fp16"}), ("v100-sxm2-16gb", {"fp32", "fp16", "int8"}),
        ("a100-sxm4-80gb", {"fp32", "tf32", "fp16", "bf16", "int8"}),
        ("h100-sxm5-80gb", {"fp32", "tf32", "fp16", "bf16", "fp8", "int8"}),
    ],
)  # fmt: skip
def test_devices_have_the_precisions_of_their_generation(name: str, precisions: set[str]) -> None:
    assert set(catalog.find_accelerator(name).peak_flop_per_s) == precisions


def test_bundled_data_sets() -> None:
    imagenet, cifar = catalog.find_dataset("imagenet-1k"), catalog.find_dataset("cifar-10")
    assert (imagenet.samples, imagenet.bytes_per_sample) == (1_281_167, 113_000)
    assert (cifar.samples, cifar.bytes_per_sample) == (50_000, 3073)


def test_default_request_is_the_published_case() -> None:
    assert catalog.default_request() == {
        "network": "sprint-15", "cluster": "tsubame-kfc", "dataset": "imagenet-1k", "mode": "async", "gpus_per_node": 8,
        "sub_batch": "1:11", "target_batch": 138, "tolerance": "25%",
    }  # fmt: skip


def test_networks_by_name_argument_and_path() -> None:
    assert catalog.find_network("alexnet").name == "alexnet"
    assert catalog.find_network("resnet50:stride=1x1").name == "resnet50:stride=1x1"
    assert catalog.find_network(str(ASSETS / "network" / "v1" / "example.toml")).name == "imagined"


OWN = "model of your own is given as the config.json of its folder, as FILE.py:FACTORY or as an ONNX file"


def test_python_without_a_factory_names_those_it_defines_and_weights_are_no_network(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("raise SystemExit\ndef build(width=1): ...\nclass Net: ...\ndef _part(): ...\n")
    with pytest.raises(UsageError, match=r"must be .*mine.py:FACTORY, got .*; the file defines build, Net$"):
        catalog.find_network(str(path))
    path.write_text("def def")
    with pytest.raises(InputFileError, match="file must be Python"):
        catalog.find_network(str(path))
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"\0\xff")
    with pytest.raises(UsageError, match=OWN):
        catalog.find_network(str(weights))


def test_path_with_a_colon_is_still_a_path(tmp_path: Path) -> None:
    path = tmp_path / "a:b.toml"
    shutil.copy(ASSETS / "network" / "v1" / "example.toml", path)
    assert catalog.find_network(str(path)).name == "imagined"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("resnet5", "network must be a known name, got 'resnet5'; did you mean 'resnet50'"),
        ("resnet5:stride=1x1", "did you mean 'resnet50'"),
        ("resnet50:strid=1x1", "got 'strid'; did you mean 'stride'"),
        ("resnet50:stride", "argument of network resnet50 must be key=value, got 'stride'"),
        ("resnet50:", "argument of network resnet50 must be key=value"),
        ("resnet50:stride=1x1,stride=3x3", "must be given once, got 'stride'"),
        ("my.module:factory", "must be a bundled network, a file, or a Python module that can be found"),
        *((name, OWN) for name in ("mm1", "mm1.build", "an-org/Llama-9-8B", "model.safetensors", "m.pt")),
    ],
)
def test_wrong_network_names(text: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence) as caught:
        catalog.find_network(text)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(("text", "missing"), [("samples=1000", "bytes_per_sample"), ("bytes_per_sample=9", "samples")])
def test_half_a_data_set_says_what_is_missing(text: str, missing: str) -> None:
    with pytest.raises(ParameterError, match=rf"^--dataset must be .*, got '{text}'; {missing} is missing$"):
        catalog.find_dataset(text)


def test_data_sets_as_typed() -> None:
    dataset = catalog.find_dataset("samples=1000,bytes_per_sample=2.5e3")
    assert (dataset.samples, dataset.bytes_per_sample, dataset.encoding) == (1000, 2500, "")
    assert catalog.find_dataset("samples=1000,bytes_per_sample=2.5e3,encoding=jpeg").encoding == "jpeg"


@pytest.mark.parametrize(
    "text",
    [
        "samples=1000", "samples=x,bytes_per_sample=1", "samples=0,bytes_per_sample=1", "samples=1,bytes_per_sample=0",
        "samples=1,bytes_per_sample=nan", "samples=-5,bytes_per_sample=1", "samples=1,samples=2",
        "samples=1,bytes_per_sampl=2", "samples=1,bytes_per_sample=2,encoding=png", "imagenet", "bytes_per_sample=",
    ],
)  # fmt: skip
def test_wrong_data_sets(text: str) -> None:
    with pytest.raises((ParameterError, UnknownNameError), match=" must be "):
        catalog.find_dataset(text)


@pytest.mark.parametrize(
    ("find", "text", "near"),
    [
        (catalog.find_cluster, "tsubame-kcf", "tsubame-kfc"),
        (catalog.find_accelerator, "v100-sxm2-16", "v100-sxm2-16gb"),
        (catalog.find_dataset, "imagenet-1K", "imagenet-1k"),
    ],
)
def test_unknown_names_offer_the_nearest(find: Callable[[str], object], text: str, near: str) -> None:
    with pytest.raises(UnknownNameError, match=f"did you mean '{near}'"):
        find(text)


def test_paths_that_are_not_there_are_file_errors(tmp_path: Path) -> None:
    finders = (catalog.find_network, catalog.find_cluster, catalog.find_dataset)
    for find, text in (*((find, "none.toml") for find in finders), (catalog.find_calibration, str(tmp_path / "none"))):
        with pytest.raises(InputFileError, match="No such file"):
            find(text)


def test_a_file_without_its_suffix_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for kind, name in (("network", "tiny.text"), ("cluster", "mine"), ("dataset", "data"), ("calibration", "noext")):
        (example,) = (ASSETS / kind / "v1").glob("example.*")
        shutil.copy(example, tmp_path / name)
    assert catalog.find_network("tiny.text").name == "imagined"
    assert catalog.find_cluster("mine").nodes == 48
    assert catalog.find_dataset("data").samples > 0
    assert catalog.find_calibration("noext").entries
    (tmp_path / "tiny.text").write_text("{}")
    with pytest.raises(InputFileError, match=r"^tiny.text: line 1: text must be TOML"):
        catalog.find_network("tiny.text")
    below = tmp_path / "below"
    below.mkdir()
    (tmp_path / "planner.toml").write_text('format = "planner/settings"\nversion = 1\ncluster = "mine"\n')
    assert catalog.read_settings(below) == (tmp_path / "planner.toml", {"cluster": str(tmp_path / "mine")})


def test_a_bundled_name_goes_before_a_file_that_is_called_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("alexnet", "tsubame-kfc"):
        (tmp_path / name).write_text("not this")
    assert catalog.find_network("alexnet").name == "alexnet"
    assert catalog.find_cluster("tsubame-kfc").nodes == 42
    assert catalog.find_calibration("tsubame-kfc").cluster == "tsubame-kfc"
    with pytest.raises(UnknownNameError):
        catalog.find_cluster("x" * 5000)


def test_the_data_set_of_a_network_file_must_be_known(tmp_path: Path) -> None:
    path = tmp_path / "n.toml"
    path.write_text((ASSETS / "network" / "v1" / "example.toml").read_text().replace('"cifar-10"', '"cifar-11"'))
    with pytest.raises(InputFileError, match=r"n.toml: dataset: data set must be a known.*did you mean 'cifar-10'"):
        catalog.find_network(str(path))


def test_cluster_file_by_path_uses_bundled_accelerators(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'format = "planner/cluster"\nversion = 1\nname = "mine"\nnodes = 2\n[node]\ngpus = 4\ngpu = "a100-sxm4-80gb"\n'
        '[links.intra_node]\nkind = "nvlink"\nbandwidth_GBps = 300\nlatency_us = 3\n'
    )
    assert catalog.find_cluster(str(path)).node.accelerator == catalog.find_accelerator("a100-sxm4-80gb")


@pytest.mark.usefixtures("bundled", "home")
def test_calibrations_of_the_cluster_come_before_those_of_its_device() -> None:
    found = catalog.calibrations_for(catalog.find_cluster("tsubame-kfc"))
    assert [one.name for one in found] == ["tsubame-kfc", "a-device"]
    assert catalog.names("calibrations") == ("a-device", "tsubame-kfc", "z-other")
    with pytest.raises(UnknownNameError, match="did you mean 'tsubame-kfc'"):
        catalog.find_calibration("tsubame-kfk")


@pytest.mark.usefixtures("bundled")
def test_newest_own_calibration_of_a_present_device_is_found(home: Path) -> None:
    assert catalog.own_calibrations_folder() == home
    assert catalog.newest_own_calibrations(["cpu"]) == ()
    stamps = [datetime(2026, 1, day, tzinfo=UTC) for day in (1, 2, 3)]
    for stamp, name, device in zip(stamps, ("old", "new", "gone"), ("cpu", "cpu", "gpu"), strict=True):
        keep(home, catalog.own_calibration_file(name, stamp).stem, make(name, device))
    (newest,) = catalog.newest_own_calibrations(["cpu"])
    assert newest.name == "new"
    assert catalog.find_calibration("old").name == "old"


@pytest.mark.usefixtures("bundled")
def test_of_own_calibrations_with_one_name_the_newest_is_found(home: Path) -> None:
    for day in (2, 1, 3):
        path = catalog.own_calibration_file("twin", datetime(2026, 1, day, tzinfo=UTC))
        keep(home, path.stem, replace(make("twin", "cpu"), date=f"2026-01-0{day}"))
    assert catalog.find_calibration("twin").date == "2026-01-03"


@pytest.mark.usefixtures("bundled")
def test_own_calibrations_that_cannot_be_used_are_passed_over_and_told_of(home: Path) -> None:
    keep(home, "20260101T000000-good", make("good", "cpu"))
    whole = keep(home, "20260102T000000-cut", make("cut", "cpu")).read_text()
    (home / "20260102T000000-cut.json").write_text(whole[:40])
    whole = whole.replace('"name": "cut"', '"name": "other"')
    (home / "20260103T000000-newer.json").write_text(whole.replace('"version": 1', '"version": 99'))
    (home / "20260104T000000-wrong.json").write_text(whole.replace('"entries"', '"entires"'))
    told: list[str] = []
    (newest,) = catalog.newest_own_calibrations(["cpu"], lambda error: told.append(error.path))
    assert newest.name == "good"
    assert [Path(path).stem.partition("-")[2] for path in told] == ["wrong", "newer", "cut"]
    assert catalog.find_calibration("good") == newest
    with pytest.raises(InputFileError, match="20260102T000000-cut"):
        catalog.find_calibration("cut")


def test_user_folder_without_xdg_is_below_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert catalog.own_calibrations_folder() == tmp_path / ".local" / "share" / "planner" / "calibrations"


def test_settings_are_found_upward(tmp_path: Path) -> None:
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    assert catalog.read_settings(below) is None
    shutil.copy(ASSETS / "settings" / "v1" / "example.toml", tmp_path / "planner.toml")
    read = catalog.read_settings(below)
    assert read is not None
    path, found = read
    assert path == tmp_path / "planner.toml"
    assert found["nodes"] == 4


def test_catalog_starts_without_heavy_packages() -> None:
    code = "import sys, planner.catalog, planner.formats; print([m for m in sys.argv[1:] if m in sys.modules])"
    heavy = ["pandas", "jsonschema", "torch", "sklearn", "scipy", "optuna", "typer", "rich"]
    done = subprocess.run([sys.executable, "-c", code, *heavy], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"


def test_files_named_in_settings_are_found_from_their_folder(tmp_path: Path) -> None:
    lines = (
        'format = "planner/settings"',
        "version = 1",
        'cluster = "mine.toml"',
        'network = ["resnet50", "n/a.toml"]',
    )
    (tmp_path / "planner.toml").write_text("\n".join(lines))
    below = tmp_path / "deep" / "er"
    below.mkdir(parents=True)
    read = catalog.read_settings(below)
    assert read is not None
    path, found = read
    assert path == tmp_path / "planner.toml"
    assert found["cluster"] == str(tmp_path / "mine.toml")
    assert found["network"] == ["resnet50", str(tmp_path / "n" / "a.toml")]


def test_a_network_file_does_not_ask_for_standard_input(tmp_path: Path) -> None:
    text = NETWORK.dump(replace(catalog.find_network("alexnet"), name="mine", dataset="-"))
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(InputFileError, match="dataset: data set must be a name or a file, got '-'"):
        catalog.find_network(str(path))


def test_a_pipe_called_as_settings_are_is_refused_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "planner.toml")
    with pytest.raises(InputFileError, match=r"planner.toml: file must be a regular one, got a pipe"):
        catalog.read_settings(tmp_path)


def test_bundled_calibrations_would_pass_as_files_of_a_user() -> None:
    every = {name: CALIBRATION.read(catalog.CALIBRATIONS / f"{name}.json") for name in catalog.names("calibrations")}
    assert {name: catalog.find_calibration(name) for name in every} == every
