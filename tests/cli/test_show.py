"""``planner show``: listings and single things, as tables and documents."""

import json
from collections.abc import Callable

import pytest

from planner import catalog
from planner.formats.names import NAMES

Run = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize("what", ["networks", "clusters", "calibrations"])
def test_every_bundled_thing_is_listed_and_shown(what: str, run: Run) -> None:
    code, out, err = run("show", what)
    assert (code, err) == (0, "")
    assert catalog.names(what)
    assert max(map(len, out.splitlines())) <= 80
    for name in catalog.names(what):
        assert name in out
        code, one, _ = run("show", what, name)
        assert code == 0
        assert one.startswith(name)
        assert max(map(len, one.splitlines())) <= 80
    listed = NAMES.parse(run("show", what, "--json")[1], "stdout")
    assert listed == {what: catalog.names(what)}


def test_resnet50_shows_layers_shapes_parameters_and_flop(run: Run) -> None:
    lines = [" ".join(line.split()) for line in run("show", "networks", "resnet50")[1].splitlines()]
    # He et al. 2016: 7x7 convolution to 64 channels, 25.56 million parameters with their biases.
    assert "conv1 convolution 64 x 112 x 112 9,408 236,027,904" in lines
    assert "parameters 25,557,032" in lines


@pytest.mark.parametrize("what", ["networks", "clusters", "calibrations"])
def test_one_thing_as_a_document_reads_back(what: str, run: Run) -> None:
    for name in catalog.names(what):
        document = json.loads(run("show", what, name, "--json")[1])
        assert (document["format"], document["name"]) == (f"planner/{what[:-1]}", name)


@pytest.mark.parametrize(
    ("what", "name", "near"), [("networks", "resnet5", "resnet50"), ("clusters", "tsubame-kf", "tsubame-kfc")]
)
def test_an_unknown_name_offers_the_nearest(what: str, name: str, near: str, run: Run) -> None:
    code, out, err = run("show", what, name)
    assert (code, out) == (2, "")
    assert err.startswith(f"planner: {what[:-1]} must be a known name, got {name!r}; did you mean {near!r}?")


def test_what_to_show_is_needed(run: Run) -> None:
    assert run("show") == (
        2,
        "",
        "planner: what to show must be one of networks, clusters, calibrations, got nothing\n",
    )
