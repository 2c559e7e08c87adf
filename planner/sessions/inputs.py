"""From option values to problems: names to records, and where every value comes from.

The order of defaults: ``planner.toml`` is already merged into the values. With ``network`` but no ``cluster``, a
calibration that is named, or this machine's own, gives the cluster ``local``: the node it was measured on. With none of
``network``, ``cluster``, ``calibration`` the bundled default request fills in what is missing. A cluster of several
node groups has one problem a group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from planner import catalog
from planner.costs.collectives import CASES, case_list
from planner.costs.terms import check_coefficients
from planner.domain.axes import ALL, RANK_ORDER
from planner.domain.calibration import ANY_ACCELERATOR, Calibration
from planner.domain.cluster import LOCAL, Cluster, MixedCluster
from planner.domain.configuration import Settings
from planner.domain.framework import TASKS, Framework, strategy_and_size
from planner.domain.network import LOOKED_UP, Network
from planner.domain.provenance import DERIVED, NEAREST
from planner.domain.request import DEFAULT, NO_SCENARIO, Dataset, Problem, Scenario, Sourced, Subject
from planner.errors import NOTHING, CoverageError, InputFileError, ParameterError, Refusal, UsageError
from planner.formats.cluster import parse_scenarios
from planner.formats.documents import STANDARD_INPUT, place_of
from planner.probes.machine import present_accelerators
from planner.sources.devices import completions, on_other_device, what_misses
from planner.sources.layer_calls import is_same_die
from planner.sources.links import contradictions
from planner.sources.overheads import check_overheads
from planner.sources.sources import Sources
from planner.workload.fusion import idle_fusions as idle_fusions_of
from planner.workload.fusion import with_attention
from planner.workload.program import block_starts
from planner.workload.shards import trained_as

OPTION, SETTINGS_FILE, DEFAULT_REQUEST = "option", "planner.toml", "default request"
Values = Mapping[str, Sourced[Any]]


def merge(*layers: Values) -> Values:
    """Return one value each; an earlier layer wins."""
    return {name: value for layer in reversed(layers) for name, value in layer.items()}


def value_of(values: Values, key: str, default: Any = None) -> Any:
    """Return the value of an option, else a default."""
    return values[key].value if key in values else default


def said(values: Values, key: str) -> str:
    """Return an option as the user gave it: its flag, or its key in ``planner.toml``."""
    in_settings = key in values and values[key].source == SETTINGS_FILE
    return f"{key} in {SETTINGS_FILE}" if in_settings else "--" + key.replace("_", "-")


def listed(values: Values, key: str) -> tuple[Any, ...]:
    """Return the values of an option that is, or may be, a list; none where it is absent."""
    if key not in values:
        return ()
    value = values[key].value
    return (value,) if isinstance(value, str) else tuple(value)


Say = Callable[[str], None]
"""Takes a sentence that is not the result."""


OWN = "own calibration"
TRAINING, INFERENCE = TASKS
ENGINE = "tensorrt"
"""Framework of inference on a GPU where none is named."""
Calibrations = tuple[Calibration, ...]


@dataclass(frozen=True, slots=True)
class Machine:
    """What the networks run on, resolved once for all of them; ``only_named``: named calibrations alone serve."""

    cluster: Cluster
    calibrations: Calibrations
    only_named: bool
    sources: Values

    def problem(
        self, network: Network, dataset: Dataset | None, settings: Settings, scenario: Scenario = NO_SCENARIO
    ) -> Problem:
        """Return the problem of training a network on this machine."""
        return Problem(network, dataset, self.cluster, self.calibrations, self.only_named, settings, scenario)


@dataclass(frozen=True, slots=True)
class Case:
    """One network under one scenario: its problem, and every value of it with its source."""

    problem: Problem
    sources: Values

    @property
    def subject(self) -> Subject:
        """What it is about, with what names its network in a command."""
        option = value_of(self.sources, "network", "")
        is_name = isinstance(option, str) and option != STANDARD_INPUT
        layers = max(len(block_starts(self.problem.network)) - 1, 0)
        return replace(self.problem.subject, network_option=option if is_name else "", layers=layers)


def own_calibrations(say: Say, accelerator: str | None = None) -> Calibrations:
    """Return this machine's newest own calibrations whose device is present (and is ``accelerator``, if named).

    Files that cannot be used are passed over, which is said.
    """
    present = [name for name in present_accelerators() if accelerator in (None, name)]
    return catalog.newest_own_calibrations(
        present, lambda error: say(f"own calibration skipped: {error}"), named_calibration
    )


def seen_cluster(calibrations: Calibrations) -> Cluster | None:
    """Return the cluster ``local``: the first node that calibrations record, as often as measured links join it."""
    recorded = [one for one in calibrations if one.node is not None]
    node = next((one.node for one in sorted(recorded, key=lambda one: not one.has_kernels)), None)
    if node is None:
        return None
    cases = [
        case
        for one in recorded
        for entry in one.entries
        if one.accelerator == node.accelerator.name and (entry.scope, entry.term) == ("collectives", CASES)
        for case in case_list(entry.settings)
    ]
    nodes, ranks = (max(counts) for counts in zip((1, node.gpus), *cases, strict=True))
    return Cluster(LOCAL, nodes, replace(node, gpus=ranks))


def named_calibration(text: str) -> Calibration:
    """Return the calibration of a name or file; InputFileError where an entry is not of a known term's coefficients."""
    calibration = catalog.find_calibration(text)
    for at, entry in enumerate(calibration.entries):
        try:
            (check_overheads if entry.scope == "overheads" else check_coefficients)(entry)
        except UsageError as error:
            raise InputFileError(place_of(text), str(error), f"entries[{at}]") from None
    return calibration


def machine_of(values: Values, say: Say, known: Calibrations = (), found: Cluster | None = None) -> Machine:
    """Return cluster and calibrations; a calibration without a cluster implies cluster ``local``, its one node.

    ``known``: calibrations that the values name, where no file holds them yet. ``found``: the cluster that they name,
    or the part of it that is meant.
    """
    of_user = known or tuple(map(named_calibration, listed(values, "calibration")))
    cluster, source, own = _cluster(values, of_user, say, found)
    _check_device(of_user, cluster, say)
    only_named = "only_calibration" in values
    if only_named and not of_user:
        raise ParameterError("--only-calibration", "given with --calibration", NOTHING)
    own, of_catalog = ((), ()) if only_named else (own, catalog.calibrations_for(cluster))
    completion = () if only_named else _completions(cluster, (*of_user, *own, *of_catalog))
    named_by = values["calibration"].source if of_user else ""
    calibrations, where = _in_order(cluster, (named_by, of_user), (OWN, own), ("bundled", of_catalog), *completion)
    for sentence in contradictions(calibrations[: len(of_user)], cluster):
        say(sentence)
    others = tuple(
        one
        for one in (*own, *of_catalog)
        if one.cluster == cluster.name or one.accelerator == ANY_ACCELERATOR or one.computes(cluster)
    )
    names = dict.fromkeys((*listed(values, "calibration"), *(one.name for one in others if one not in of_user)))
    sources: Values = {
        "cluster": Sourced(value_of(values, "cluster", cluster.name), source),
        "calibration": Sourced(tuple(names), where),
    }
    return Machine(cluster, calibrations, only_named, sources)


def _completions(cluster: Cluster, known: Calibrations) -> Iterator[tuple[str, Calibrations]]:
    of_others = catalog.sibling_calibrations, catalog.nearest_calibrations
    return completions(cluster, known, *of_others, catalog.transfer_scores())


def _check_device(calibrations: Calibrations, cluster: Cluster, say: Say) -> None:
    """Refuse named calibrations that are all of other devices than the cluster's; of some among others, say so."""
    device = cluster.node.accelerator.name
    foreign = [
        one for one in calibrations if one.accelerator not in (device, ANY_ACCELERATOR) and one.cluster != cluster.name
    ]
    if foreign and len(foreign) == len(calibrations):
        rule = f"--calibration must be of {device}, the device of cluster {cluster.name!r}"
        got = ", ".join(f"{one.name} of {one.accelerator}" for one in foreign)
        remedy = "; leave it out, or calibrate that device"
        raise CoverageError(Refusal("other_device", rule, "--calibration", got, remedy))
    # Those of a device of the same chip serve calls that they timed.
    strange = [one for one in foreign if not is_same_die(one, cluster.node.accelerator)]
    if strange:
        got = ", ".join(f"{one.name} of {one.accelerator}" for one in strange)
        say(f"--calibration {got}: cluster {cluster.name!r} has {device}, so no kernel is priced by it")


def _cluster(
    values: Values, calibrations: Calibrations, say: Say, found: Cluster | None
) -> tuple[Cluster, str, Calibrations]:
    """Return the cluster, its source, and this machine's own calibration where it is one of the cluster's device."""
    if "cluster" in values and values["cluster"].value != LOCAL:
        cluster = found or catalog.find_cluster(values["cluster"].value)
        is_default = values["network"].source == DEFAULT_REQUEST
        own = () if is_default else own_calibrations(say, cluster.node.accelerator.name)
        return cluster, values["cluster"].source, own
    own = own_calibrations(say)
    if (seen := seen_cluster(calibrations or own)) is not None:
        own = own if own and own[0].accelerator == seen.node.accelerator.name else ()
        # Links that were measured once join the nodes of every later calibration of this machine.
        return seen_cluster((*calibrations, *own)) or seen, "calibration" if calibrations else OWN, own
    if calibrations:
        what = f"calibration {calibrations[0].name!r}"
        rule = f"given with {what}, which is of no node"
        raise ParameterError("--cluster", rule, NOTHING, "name one: 'planner show clusters' lists them")
    remedy = "this machine has no calibration of its own: name a cluster, or measure with 'planner calibrate'"
    raise ParameterError("--cluster or --calibration", f"given with {said(values, 'network')}", NOTHING, remedy)


def _in_order(
    cluster: Cluster, named: tuple[str, Calibrations], *groups: tuple[str, Calibrations]
) -> tuple[Calibrations, str]:
    """Return the calibrations of (source, calibrations) groups, each once, and the sources that had any.

    Named ones that were measured on a node of the cluster's device hold its links, input and host terms too. A call
    that was timed as it is goes before a fit of its own group, not of one before.
    """
    seen, sources = [*named[1]], [named[0]]
    calibrations: Calibrations = ()
    for one in named[1]:
        times_links = any(entry.term == CASES for entry in one.entries)  # of a device that their log did not name
        is_here = (one.node is not None and one.computes(cluster)) or (
            one.accelerator == ANY_ACCELERATOR and times_links
        )
        calibrations += (replace(one, cluster=cluster.name) if is_here and one.cluster is None else one,)
    for source, group in groups:
        misses = what_misses(calibrations, cluster)
        new: Calibrations = ()
        for one in (one for one in group if one not in seen):
            entries = tuple(entry for entry in one.entries if entry.term != LOOKED_UP or misses(*entry.key[1:4]))
            new += (one if len(entries) == len(one.entries) else replace(one, entries=entries),)
        seen += new
        calibrations += new
        sources += [source] if new else []
    return calibrations, ", then ".join(filter(None, sources)) or DEFAULT


def check_trainable(values: Values, networks: Iterable[Network]) -> None:
    """Refuse what frozen layers are not modelled with: asynchronous training, training in int8, and inference."""
    if not any(one.has_frozen for one in networks):
        return
    for key, refused, rule in (
        ("mode", "async", "sync"),
        ("precision", "int8", "another precision"),
        ("allow_lossy", True, "left out"),
        ("task", INFERENCE, TRAINING),
    ):
        value = value_of(values, key, None)
        if value == refused or (isinstance(value, tuple) and refused in value):
            flag = "--" + key.replace("_", "-")
            raise ParameterError(flag, f"{rule} where layers are frozen", refused)


def check_nodes(cluster: Cluster, values: Values) -> None:
    """Refuse more nodes, or more GPUs a node, than the cluster has."""
    most = max(values["nodes"].value) if "nodes" in values else 1
    if most > cluster.nodes and cluster.name == LOCAL:
        remedy = "; no link between nodes is known: name it with --cluster"
        rule = "--nodes must be 1 on cluster 'local'"
        raise CoverageError(Refusal("link_missing", rule, "--nodes", str(most), remedy))
    for key, limit in (("nodes", cluster.nodes), ("gpus_per_node", cluster.node.gpus)):
        if key in values and max(values[key].value) > limit:
            flag = "--" + key.replace("_", "-")
            raise ParameterError(flag, f"at most {limit} on cluster {cluster.name!r}", max(values[key].value))


def cases(values: Values, machine: Machine) -> tuple[Case, ...]:
    """Return every network in every framework under every scenario; a framework of two names is one."""
    scenarios: tuple[Scenario, ...] = (NO_SCENARIO,)
    if "scenario" in values:
        scenarios = parse_scenarios(values["scenario"].value, machine.cluster, catalog.find_accelerator)
    named: dict[Framework, str] = {}
    task = value_of(values, "task", TRAINING)
    for text in listed(values, "framework"):
        framework = catalog.find_framework(text)
        if task not in framework.tasks:
            remedy = f"{text} is for --task {' or '.join(framework.tasks)}"
            raise ParameterError("--framework", f"one that is for {task}", text, remedy)
        named.setdefault(framework, text)
    each = [merge({"framework": replace(values["framework"], value=one)}, values) for one in named.values()]
    networks = values["network"].value
    return tuple(case for name in networks for case in _cases_of(name, each or [values], machine, scenarios))


def _cases_of(name: str, each: Sequence[Values], machine: Machine, scenarios: Iterable[Scenario]) -> Iterator[Case]:
    """Yield a network in every framework under every scenario; those that run it alike share its record."""
    network = trained_as(catalog.find_network(name), value_of(each[0], "trainable", ALL))
    named = each[0].get("dataset", Sourced(network.dataset, "network" if network.dataset else DEFAULT))
    dataset = catalog.find_dataset(named.value) if named.value is not None else None
    machines = [(scenario, _under(scenario, machine)) for scenario in scenarios]
    shared: dict[bool, Network] = {}
    of_scenario = each[0]["scenario"].source if "scenario" in each[0] else DEFAULT
    for values in each:
        for scenario, there in machines:
            settings, sources = _settings(values, there, network, dataset)
            is_fused = "attention" in settings.framework.fuses
            if is_fused not in shared:
                shared[is_fused] = with_attention(network, settings.framework.fuses)
            own: Values = {
                "network": Sourced(name, values["network"].source),
                "dataset": named,
                "scenario": Sourced(scenario.text or None, of_scenario),
            }
            problem = there.problem(shared[is_fused], dataset, settings, scenario)
            yield Case(problem, merge(own, there.sources, sources, values))


def _under(scenario: Scenario, machine: Machine) -> Machine:
    """Return what the networks run on under a scenario, which may put another device into the nodes."""
    if scenario.accelerator is None:
        return machine
    unscaled = tuple(one for one in machine.calibrations if one.provenance.kind not in (DERIVED, NEAREST))
    there = replace(machine.cluster, node=replace(machine.cluster.node, accelerator=scenario.accelerator))
    known = () if machine.only_named else catalog.calibrations_for(there)
    cluster, calibrations = on_other_device(
        machine.cluster, scenario.accelerator, unscaled, catalog.transfer_scores(), known
    )
    for _, more in () if machine.only_named else _completions(cluster, calibrations):
        calibrations += more
    names = replace(machine.sources["calibration"], source=f"{machine.sources['calibration'].source}, scaled")
    return replace(
        machine, cluster=cluster, calibrations=calibrations, sources=merge({"calibration": names}, machine.sources)
    )


def _settings(values: Values, machine: Machine, network: Network, dataset: Dataset | None) -> tuple[Settings, Values]:
    base = Settings()
    defaults: Mapping[str, Sourced[Any]] = {
        "optimizer": Sourced(network.optimizer, "network"),
        "framework": Sourced(base.framework.name, DEFAULT),
        "input": Sourced(base.input, DEFAULT),
    }
    sources = {key: values.get(key, default) for key, default in defaults.items()}
    missing = ""
    if sources["input"].value == "storage":
        priced = Sources(Problem(network, dataset, machine.cluster, machine.calibrations))
        if not priced.has_storage:
            missing = f"neither cluster {machine.cluster.name!r} nor a calibration has storage"
        elif not priced.storage:
            missing = "without a data set the bytes of a sample are unknown"
    if missing and sources["input"].source != DEFAULT:
        rule = "--input must be synthetic here"
        raise CoverageError(Refusal("input_missing", rule, "--input", "'storage'", f"; {missing}"))
    if missing:
        sources["input"] = Sourced("synthetic", f"default, as {missing}")
    framework = catalog.find_framework(sources["framework"].value)
    sources["framework"] = replace(sources["framework"], value=framework.label)
    sources["strategy"] = values.get("strategy", Sourced(framework.strategy, "framework"))
    if "rank_order" in values or framework.rank_order != RANK_ORDER:
        sources["rank_order"] = values.get("rank_order", Sourced(framework.rank_order, "framework"))
    of_buckets = dict(zip(("strategy", "bucket_bytes"), strategy_and_size(sources["strategy"].value), strict=True))
    if "trainable" in values:
        sources["trainable"] = values["trainable"]
    names = {key: one.value for key, one in sources.items()}
    return replace(base, **(names | of_buckets | {"framework": framework})), sources


def idle_fusions(of: Iterable[Case]) -> tuple[str, ...]:
    """Return a sentence for what was asked to be fused, and is not there: all of a switch's, or one of an own file."""
    sentences = []
    for case in of:
        framework, network = case.problem.settings.framework, case.problem.network
        by_switch = {f"switch {one}": framework.switches[one].changes.get("fuses", ()) for one in framework.switched}
        known = {*catalog.bundled_fusions(framework.name), *(name for some in by_switch.values() for name in some)}
        by_key = {f"fuses {name!r}": (name,) for name in framework.fuses if name not in known}
        for what, names in (by_switch | by_key).items():
            idle = idle_fusions_of(network, names)
            if names and len(idle) == len(names):
                kinds = ", ".join(idle.values())
                sentences.append(f"{what} of framework {framework.name} is ignored: {network.name} has no {kinds}")
    return tuple(dict.fromkeys(sentences))


Question = Mapping[str, Case]
"""Group -> one network under one scenario on its nodes."""


def mixed_cluster(values: Values) -> MixedCluster | None:
    """Return the cluster that the values name where it has several node groups, else None."""
    if "cluster" not in values or values["cluster"].value == LOCAL:
        return None
    cluster = catalog.find_any_cluster(values["cluster"].value)
    return cluster if isinstance(cluster, MixedCluster) else None


def questions(values: Values, mixed: MixedCluster, say: Say) -> tuple[Question, ...]:
    """Return every network under every scenario, each on the nodes of every group.

    ParameterError: what plans across groups do not have: several frameworks, or a scenario with another device.
    CoverageError: a named calibration is of no group's device.
    """
    frameworks = listed(values, "framework")
    if len(frameworks) > 1:
        rule = f"one framework on cluster {mixed.name!r} of several node groups"
        raise ParameterError("--framework", rule, ",".join(frameworks), "ask for each by itself")
    devices = {one.name: one.cluster.node.accelerator.name for one in mixed.groups}
    named = {name: named_calibration(name).accelerator for name in listed(values, "calibration")}
    foreign = [f"{name} of {one}" for name, one in named.items() if one not in (*devices.values(), ANY_ACCELERATOR)]
    if foreign:
        rule = f"--calibration must be of {' or '.join(devices.values())}, the devices of cluster {mixed.name!r}"
        raise CoverageError(Refusal("other_device", rule, "--calibration", ", ".join(foreign)))
    machines = {}  # of each group its nodes, and the calibrations of its device
    for group in mixed.groups:
        own = tuple(name for name, device in named.items() if device in (devices[group.name], ANY_ACCELERATOR))
        rest = {key: one for key, one in values.items() if key != "calibration"}
        of_group = merge({"calibration": replace(values["calibration"], value=own)} if own else {}, rest)
        machines[group.name] = machine_of(of_group, say, found=group.cluster)
    each = {name: cases(values, machine) for name, machine in machines.items()}
    found = tuple(dict(zip(each, of_all, strict=True)) for of_all in zip(*each.values(), strict=True))
    check_trainable(values, (case.problem.network for question in found for case in question.values()))
    for question in found:
        scenario = next(iter(question.values())).problem.scenario
        if scenario.accelerator is not None:
            rule = f"without another GPU on cluster {mixed.name!r} of several node groups"
            raise ParameterError("--scenario", rule, scenario.text, "write it into a group of the cluster's file")
    return found


def subject_of_all(question: Question, mixed: MixedCluster) -> Subject:
    """Return what an answer is about: the network on the whole cluster."""
    return replace(next(iter(question.values())).subject, cluster=mixed.name)
