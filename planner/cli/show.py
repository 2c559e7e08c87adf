"""``planner show``: what is bundled, and everything about one thing."""

from __future__ import annotations

import json
import platform
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from planner import catalog
from planner.cli.parsing import choice
from planner.cli.request import say_unused_frameworks, with_unknown
from planner.cli.streams import note, write_document, write_text, write_view
from planner.costs.gaussian_process import GAUSSIAN_PROCESS, stored_points
from planner.costs.terms import TERMS
from planner.domain.calibration import Entry
from planner.domain.cluster import Cluster, MixedCluster
from planner.domain.network import family_of
from planner.errors import NOTHING, ParameterError
from planner.fitting.next_points import gaps_of
from planner.formats.calibration import CALIBRATION
from planner.formats.cluster import ACCELERATOR, write_cluster
from planner.formats.detected import COMMANDS, draft, read_reports
from planner.formats.documents import place_of, read_text
from planner.formats.framework import FRAMEWORK, framework_keys
from planner.formats.network import DATASET, LISTED_KINDS, NETWORK, names_document, network_work_document
from planner.networks.zoo import arguments_of, zoo_names
from planner.probes.machine import likely_names, reports
from planner.report import show as views
from planner.report.blocks import Block, Pairs, heading
from planner.report.studies import kernel_table, ridge_words
from planner.sessions.measure import can_be_measured, measured_for, measuring
from planner.sources.overheads import FORMULA
from planner.steps.kernel_rows import work_rows
from planner.workload.calls import layer_work, totals
from planner.workload.shards import trained_as


@dataclass(frozen=True, slots=True)
class Shelf:
    """How one kind of thing is found, listed, shown and printed as a document; ``toml`` writes its file."""

    find: Callable[[str], Any]
    listing: Callable[[Iterable[Any]], Iterable[Block]]
    view: Callable[[str, Any], Iterable[Block]]
    document: Callable[[Any], Mapping[str, Any]]
    toml: Callable[[Any], str] | None = None


def run(arguments: Mapping[str, Any]) -> None:
    """Show a list, or one thing, as tables, as one document or as a file to start from."""
    makers: tuple[Callable[[], Shelf], ...]
    makers = (_networks, _clusters, _calibrations, lambda: _DATASETS, lambda: _ACCELERATORS, _frameworks)
    shelves = dict(zip(LISTED_KINDS, makers, strict=True))
    arguments = with_unknown(arguments)
    if "what" not in arguments:
        raise ParameterError("what to show", "one of " + ", ".join(shelves), NOTHING)
    typed = arguments["what"]
    what = str(choice(*shelves)("what to show", f"{typed}s" if f"{typed}s" in shelves else typed))
    shelf, as_json = shelves[what](), "json" in arguments
    if "trainable" in arguments:
        if what != "networks":
            raise ParameterError("--trainable", "used with networks", what)
        find = shelf.find
        shelf = replace(shelf, find=lambda name: trained_as(find(name), arguments["trainable"]))
    if "detect" in arguments or "from_" in arguments:
        _detect(what, arguments)
    elif "toml" in arguments:
        if as_json:
            raise ParameterError("--toml", "given without --json", "both")
        if shelf.toml is None:
            raise ParameterError("--toml", "used with networks, clusters, datasets or frameworks", what)
        if "item" not in arguments:
            raise ParameterError("--toml", f"used with one of the {what}", NOTHING, f"'planner show {what}' lists them")
        write_text(shelf.toml(shelf.find(arguments["item"])))
    elif "item" in arguments:
        name = arguments["item"]
        thing = shelf.find(name)
        if "work" in arguments and what != "networks":
            raise ParameterError("--work", "used with networks", what)
        if as_json:
            write_document(shelf.document(thing))
        else:
            view = list(shelf.view(name, thing))
            if "work" in arguments:  # the kernels of a step of one sample, and the ridges of bundled devices
                view += kernel_table(work_rows(thing), "of a step of one sample in fp32", {})
                view.append(heading("Ridge of the roofline: FLOP a byte above which compute bounds a kernel"))
                devices = [catalog.find_accelerator(one) for one in catalog.names("accelerators")]
                view.append(Pairs([(one.name, ridge_words(one.ridges)) for one in devices]))
            write_view(view)
    elif as_json:
        own = (one.name for one in _own(what)) if what in ("calibrations", "frameworks") else ()
        write_document(names_document(what, catalog.names(what), tuple(own)))
    else:
        write_view(shelf.listing(shelf.find(name) for name in catalog.names(what)))


def _detect(what: str, arguments: Mapping[str, Any]) -> None:
    """Write the draft of a cluster's file: of this machine and its Slurm, or of texts saved elsewhere."""
    if "detect" not in arguments or what != "clusters":
        if what == "clusters":
            raise ParameterError("--from", "used with --detect", NOTHING, "add --detect")
        raise ParameterError("--detect", "used with clusters, and --from with it", what)
    if given := {"item", "json", "toml", "work"} & arguments.keys():
        got = ", ".join(str(arguments[one]) if one == "item" else f"--{one}" for one in sorted(given))
        raise ParameterError("--detect", "given without a name, --json, --toml or --work", got, "give files by --from")
    files = [str(one) for one in arguments.get("from_", ())]
    texts = {place_of(one): read_text(one) for one in files} or reports(COMMANDS)
    seen = read_reports(texts, "" if files else platform.node().partition(".")[0])
    text, asked = draft(seen, likely_names)
    write_text(text)
    questions = f"{len(asked)} question{'s' if len(asked) != 1 else ''}"
    note(f"{questions} to answer in it: {', '.join(dict.fromkeys(asked))}" if asked else "nothing is left to answer")


def _own(what: str) -> tuple[Any, ...]:
    """Return the user's own calibrations or frameworks; say which are skipped."""
    find = catalog.own_calibrations if what == "calibrations" else catalog.own_frameworks
    return find(lambda error: note(f"own {what.removesuffix('s')} skipped: {error}"))


def _networks() -> Shelf:
    def view(name: str, network: Any) -> Iterable[Block]:
        family = family_of(name)
        arguments = arguments_of(family) if family in zoo_names() else {}
        return views.network_view(network, layer_work(network), totals(network), arguments)

    def listing(networks: Iterable[Any]) -> Iterable[Block]:
        return views.networks_view((network, totals(network)) for network in networks)

    def document(network: Any) -> Mapping[str, Any]:
        return network_work_document(network, layer_work(network), totals(network))

    return Shelf(catalog.find_network, listing, view, document, NETWORK.dump)


def _clusters() -> Shelf:
    def written(cluster: Cluster | MixedCluster) -> str:
        if isinstance(cluster, MixedCluster):
            rule = f"used with clusters of one node group, not of {' and '.join(cluster.names)}"
            raise ParameterError("--json or --toml", rule, cluster.name, "its file says the same")
        return write_cluster(cluster)

    def view(_: str, cluster: Cluster | MixedCluster) -> Iterator[Block]:
        groups = [one.cluster for one in cluster.groups] if isinstance(cluster, MixedCluster) else [cluster]
        return chain.from_iterable(map(views.cluster_view, groups))

    return Shelf(
        catalog.find_any_cluster, views.clusters_view, view, lambda cluster: tomllib.loads(written(cluster)), written
    )


def _calibrations() -> Shelf:
    formulas = {**{name: term.doc for name, term in TERMS.items()}, "overheads": FORMULA}

    def stored(entry: Entry) -> Collection[str]:
        return [one.name for one in stored_points(entry.settings)] if entry.term == GAUSSIAN_PROCESS else ()

    def view(_name: str, calibration: Any) -> Iterable[Block]:
        yield from views.calibration_view(calibration, formulas, stored)
        gaps = gaps_of(calibration, measured_for(calibration), can_be_measured(calibration))
        yield from views.gaps_view(gaps, measuring(gaps, calibration))

    def listing(calibrations: Iterable[Any]) -> Iterable[Block]:
        return views.calibrations_view(calibrations, _own("calibrations"))

    return Shelf(catalog.find_calibration, listing, view, lambda one: json.loads(CALIBRATION.dump(one)))


_DATASETS = Shelf(
    catalog.find_dataset, views.datasets_view, lambda _, one: views.dataset_view(one), DATASET.document, DATASET.dump
)
_ACCELERATORS = Shelf(
    catalog.find_accelerator, views.accelerators_view, lambda _, one: views.accelerator_view(one), ACCELERATOR.document
)


def _frameworks() -> Shelf:
    say_unused_frameworks()
    return Shelf(
        catalog.find_framework,
        lambda bundled: views.frameworks_view(bundled, _own("frameworks")),
        lambda _, one: views.framework_view(one, framework_keys(one)),
        FRAMEWORK.document,
        FRAMEWORK.dump,
    )
