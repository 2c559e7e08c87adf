"""Cluster and accelerator files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from planner.domain.cluster import Accelerator, Cluster, MixedCluster
from planner.errors import InputFileError, UnknownNameError
from planner.formats.cluster import ACCELERATOR, read_cluster, write_cluster

Find = Callable[[str], Accelerator]


@pytest.fixture
def find(accelerator: Accelerator) -> Find:
    """Return a lookup that knows one bundled accelerator."""

    def look(name: str) -> Accelerator:
        if name != accelerator.name:
            raise UnknownNameError("accelerator", name, [accelerator.name])
        return accelerator

    return look


def text_of(name: str, *changes: tuple[str, str]) -> str:
    text = f"""format = "planner/cluster"
version = 1
name = "{name}"
nodes = 48
[node]
gpus = 8
gpu = "imagined"
[links.intra_node]
kind = "nvlink"
bandwidth_GBps = 300
latency_us = 3
"""
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return text


def read(tmp_path: Path, text: str, find: Find) -> Cluster:
    found = read_any(tmp_path, text, find)
    assert isinstance(found, Cluster)
    return found


def read_any(tmp_path: Path, text: str, find: Find) -> Cluster | MixedCluster:
    path = tmp_path / "c.toml"
    path.write_text(text)
    return read_cluster(path, find)


def test_example_of_every_key_is_read_in_si(assets: Path, find: Find) -> None:
    found = read_cluster(assets / "cluster" / "v1" / "example.toml", find)
    assert isinstance(found, Cluster)
    assert found.node.accelerator.memory_bytes == 80 * 2.0**30  # the file's own description wins over a bundled one
    assert found.node.accelerator.peak_flop_per_s == {"fp32": 19.5e12, "fp16": 312e12}
    assert found.node.accelerator.name == "imagined"
    assert found.node.host_memory_bytes == 2.0**40
    assert found.inter_node is not None
    assert (found.inter_node.bytes_per_s, found.inter_node.nics_per_node, found.inter_node.latency_s) == (25e9, 8, 5e-6)
    assert (found.inter_node.gpu_direct, found.inter_node.in_network_reduction) == (False, False)
    assert found.intra_node is not None
    assert found.intra_node.in_network_reduction
    assert found.host is not None
    assert (found.host.kind, found.host.latency_s) == ("pcie4", 0.0)
    assert found.storage is not None
    assert (found.storage.read_bytes_per_s, found.storage.shared, found.storage.cache_bytes) == (2e9, True, 2.0**39)
    assert found.usd_per_gpu_hour == 2.0


def test_cluster_comes_back_as_it_was(tmp_path: Path, cluster: Cluster, find: Find) -> None:
    text = write_cluster(cluster)
    assert text.startswith('format = "planner/cluster"\nversion = 1\nname = "example"\n')
    assert read(tmp_path, text, find) == cluster


def test_what_links_can_do_comes_back_as_it_was(tmp_path: Path, cluster: Cluster, find: Find) -> None:
    assert cluster.intra_node is not None
    assert cluster.inter_node is not None
    for direct in (True, False, None):
        between = replace(cluster.inter_node, gpu_direct=direct, in_network_reduction=True)
        one = replace(cluster, intra_node=replace(cluster.intra_node, in_network_reduction=True), inter_node=between)
        assert read(tmp_path, write_cluster(one), find) == one


def test_accelerator_comes_back_as_it_was(tmp_path: Path, accelerator: Accelerator) -> None:
    (tmp_path / "a.toml").write_text(ACCELERATOR.dump(accelerator))
    assert ACCELERATOR.read(tmp_path / "a.toml") == accelerator


def test_minimal_cluster_knows_nothing_it_was_not_told(tmp_path: Path, find: Find) -> None:
    found = read(tmp_path, text_of("small"), find)
    assert (found.inter_node, found.host, found.storage, found.usd_per_gpu_hour) == (None, None, None, None)
    assert found.node.host_memory_bytes is None


def test_one_group_is_the_same_as_node(tmp_path: Path, find: Find) -> None:
    grouped = text_of("small", ("nodes = 48\n[node]\n", '[[node_groups]]\nname = "all"\ncount = 48\n'))
    assert read(tmp_path, grouped, find) == read(tmp_path, text_of("small"), find)


GROUP = '[[node_groups]]\nname = "{}"\ncount = {}\ngpus = {}\ngpu = "imagined"\n'
TWO = 'format = "planner/cluster"\nversion = 1\nname = "two"\n' + GROUP.format("old", 2, 8) + GROUP.format("new", 3, 4)
DEVICE = "[accelerator]\nmemory_GiB = 16\nmemory_bandwidth_GBps = 900\npeak_TFLOPps = {fp32 = 1}\n"
INSIDE = '[{}.intra_node]\nkind = "nvlink"\nbandwidth_GBps = {}\nlatency_us = 3\n'


def test_several_groups_are_a_cluster_each(tmp_path: Path, find: Find) -> None:
    text = (
        TWO + INSIDE.format("node_groups.links", 300) + INSIDE.format("links", 150) + "[price]\nusd_per_gpu_hour = 2\n"
    )
    found = read_any(tmp_path, text, find)
    assert isinstance(found, MixedCluster)
    assert (found.name, found.names) == ("two", ("old", "new"))
    old, new = (one.cluster for one in found.groups)
    assert (old.name, old.nodes, old.node.gpus, old.usd_per_gpu_hour) == ("two, group old", 2, 8, 2.0)
    assert (new.name, new.nodes, new.node.gpus) == ("two, group new", 3, 4)
    assert old.intra_node is not None
    assert new.intra_node is not None
    assert (old.intra_node.bytes_per_s, new.intra_node.bytes_per_s) == (150e9, 300e9)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (TWO, "links: table must be given"),
        (TWO.replace('"new"', '"old"') + INSIDE.format("links", 1), "names of node groups must be different"),
        (TWO.replace('"new"', '"a:b"') + INSIDE.format("links", 1), "name of a node group must be without spaces"),
        (TWO.replace('"two"', '"two"\nnodes = 4') + INSIDE.format("links", 1), "instead of nodes"),
        (TWO + INSIDE.format("links", 1) + DEVICE, r"accelerator\.name must be given where there are several"),
    ],
)  # fmt: skip
def test_mistakes_in_groups_are_named(tmp_path: Path, find: Find, text: str, sentence: str) -> None:
    with pytest.raises(InputFileError, match=sentence):
        read_any(tmp_path, text, find)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (
            "bandwidth_GBps",
            "bandwith_GBps",
            "links.intra_node.bandwith_GBps: key must .* did you mean 'bandwidth_GBps'",
        ),
        (
            "latency_us = 3",
            'latency_us = 3\nin_network_reduction = "yes"',
            "in_network_reduction: value must be true or false",
        ),
        ("latency_us = 3", "latency_us = 3\ngpu_direct = true", "links.intra_node.gpu_direct: key must"),
        ("bandwidth_GBps", "bandwidth", "links.intra_node.bandwidth: key must be written with its unit"),
        ("bandwidth_GBps", "bandwidth_Gbps", "links.intra_node.bandwidth_Gbps: key must be written with its unit"),
        ("latency_us", "latency_ms", "links.intra_node.latency_ms: key must be written with its unit, 'latency_us'"),
        ("latency_us = 3\n", "", "links.intra_node.latency_us: key must be given"),
        (
            "= 300",
            "= -300",
            "links.intra_node.bandwidth_GBps: value must be a number of GBps from 0.001 to 1e.06, got -300",
        ),
        ("= 300", "= 0", "links.intra_node.bandwidth_GBps: value must be a number of GBps from .*got 0"),
        ("= 300", "= nan", "links.intra_node.bandwidth_GBps: value must be a number.*got nan"),
        ("= 300", "= inf", "links.intra_node.bandwidth_GBps: value must be a number.*got inf"),
        ("= 300", "= 3e11", "links.intra_node.bandwidth_GBps: value must be .*to 1e.06, got"),
        ("= 300", '= "300GB/s"', "links.intra_node.bandwidth_GBps: value must be .*got '300GB/s'"),
        ("nodes = 48", "nodes = 0", "nodes: value must be a whole number from 1 to 1000000, got 0"),
        ("nodes = 48", "nodes = 4.5", "nodes: value must be a whole number"),
        ("nodes = 48\n", "", "nodes must be given, or .*node_groups"),
        ("gpus = 8", "gpus = 100000", "node.gpus: value must be a whole number from 1 to 4096"),
        (
            '"imagined"',
            '"imagine"',
            "node.gpu: accelerator must .* did you mean 'imagined'.*describe it in .accelerator",
        ),
        ("[links.intra_node]", "[links.intra]", "links.intra: key must .* did you mean 'intra_node'"),
        ("[links", '[[node_groups]]\nname = "a"\ncount = 48\ngpus = 8\ngpu = "imagined"\n[links', "instead of nodes"),
    ],
)
def test_mistakes_name_the_place(tmp_path: Path, find: Find, old: str, new: str, sentence: str) -> None:
    with pytest.raises(InputFileError, match=sentence) as caught:
        read(tmp_path, text_of("small", (old, new)), find)
    assert str(caught.value).startswith(str(tmp_path / "c.toml") + ": ")


@pytest.mark.parametrize("name", ["local", "-", "a/b", "/etc/cluster", "./own", "own.toml"])
def test_a_name_that_the_option_takes_for_something_else_is_refused(tmp_path: Path, find: Find, name: str) -> None:
    sentence = rf": name: value must be a name, neither 'local', which is this machine, nor a path, got '{name}'$"
    with pytest.raises(InputFileError, match=sentence):
        read(tmp_path, text_of(name), find)


def test_described_accelerator_must_be_the_one_of_the_nodes(tmp_path: Path, find: Find) -> None:
    device = '[accelerator]\nname = "other"\nmemory_GiB = 16\nmemory_bandwidth_GBps = 900\npeak_TFLOPps = {fp32 = 1}\n'
    with pytest.raises(InputFileError, match=r"accelerator\.name must be that of node\.gpu, 'imagined', got 'other'"):
        read(tmp_path, text_of("small") + device, find)


def test_unknown_precision_names_the_nearest() -> None:
    text = (
        'format = "planner/accelerator"\nversion = 1\nname = "a"\nmemory_GiB = 1\nmemory_bandwidth_GBps = 1\n'
        "peak_TFLOPps = { pf16 = 1 }"
    )
    with pytest.raises(InputFileError, match=r"peak_TFLOPps\.pf16: key must be a known one.*'fp16'"):
        ACCELERATOR.parse(text, "a.toml")


@pytest.mark.parametrize(("nodes", "gpus"), [(1, 8), (4, 1), (4, 8)])
def test_a_cluster_of_several_devices_must_have_links(tmp_path: Path, find: Find, nodes: int, gpus: int) -> None:
    node = f'nodes = {nodes}\n[node]\ngpus = {gpus}\ngpu = "imagined"\n'
    text = f'format = "planner/cluster"\nversion = 1\nname = "c"\n{node}'
    with pytest.raises(
        InputFileError, match=rf"c.toml: links: table must be given .* got nothing for {nodes} x {gpus}"
    ):
        read(tmp_path, text, find)


def test_a_device_that_is_alone_needs_no_links(tmp_path: Path, find: Find) -> None:
    text = 'format = "planner/cluster"\nversion = 1\nname = "c"\nnodes = 1\n[node]\ngpus = 1\ngpu = "imagined"\n'
    assert read(tmp_path, text, find).intra_node is None
