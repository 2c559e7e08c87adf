"""What starts a plan: a program, and each value of the plan as a flag, a key or a variable that the program reads.

The record of a framework says what is written (:attr:`planner.domain.framework.Framework.writes`); nothing else here
knows a flag of any program.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from planner.domain.axes import ALL, AXES
from planner.domain.configuration import Configuration, Settings
from planner.domain.framework import size_words
from planner.domain.precision import precision_named
from planner.domain.prediction import LayersOfStage, Prediction, Quantity, Run, SharedLayers
from planner.domain.request import Subject
from planner.domain.split import even_layers

FILE = "{file}"
"""In place of the path of the file that holds the keys."""
ARGUMENT, VARIABLE, KEY = "argument", "variable", "key"
"""How a program is told a value."""
PREFIX = "PLAN_"
"""Of variables that say the plan to a program of the user's own."""


@dataclass(frozen=True, slots=True)
class PlanToStart:
    """A plan and what its document says of it.

    Attributes
    ----------
    subject : of the plan, in its framework
    stage_layers, shared_layers : as of :class:`planner.domain.prediction.Prediction`
    training_s : of the run, that of the document or an epoch; None: it has no epoch
    """

    position: int
    subject: Subject
    configuration: Configuration
    iteration_s: Quantity
    rank_order: tuple[str, ...] = ()
    stage_layers: tuple[LayersOfStage, ...] = ()
    shared_layers: SharedLayers | None = None
    training_s: Quantity | None = None
    run: Run = Run()  # noqa: RUF009 - frozen, so shared safely

    @staticmethod
    def of(prediction: Prediction, subject: Subject, position: int = 1, run: Run | None = None) -> PlanToStart:
        """Return the plan of a prediction; ``run``: None for one epoch."""
        run = run or Run()
        one = prediction
        what = one.configuration, one.iteration_s, one.rank_order, one.stage_layers, one.shared_layers
        return PlanToStart(position, subject, *what, one.training_s(run, subject.tokens), run)


@dataclass(frozen=True, slots=True)
class Job:
    """What starts a plan.

    Attributes
    ----------
    starter : one of STARTERS
    arguments, variables, keys : what is told the program on its command line, by variables and in a file
    asked : mapping of str to str, what the program has to be told, in words, by name
    told : mapping of str to how it is told; by none of ARGUMENT, VARIABLE and KEY: nothing has to be said
    comment : what is to be known beside the command: where it is given, and what a program of the user's own has to be
        told
    refusal : why no job starts the plan; empty: one does
    """

    configuration: Configuration
    starter: str
    program: tuple[str, ...]
    arguments: tuple[str, ...]
    variables: Mapping[str, str]
    keys: Mapping[str, Any]
    asked: Mapping[str, str]
    told: Mapping[str, frozenset[str]]
    comment: str
    refusal: str = ""

    @property
    def line(self) -> str:
        """The command in one line, as a person gives it, with the comment behind it."""
        comment = f"  # {self.comment}" if self.comment else ""
        return f"{' '.join([*self.settings, *self.command(file=self.file_name)])}{comment}"

    @property
    def settings(self) -> list[str]:
        """Variables of the command, but for those that only say the plan, as they stand before it."""
        return [f"{name}={shlex.quote(value)}" for name, value in self.variables.items() if not name.startswith(PREFIX)]

    @property
    def file_name(self) -> str:
        """Of the file with the keys."""
        return "accelerate.yaml" if self.starter == "accelerate" else "deepspeed.json"

    @property
    def untold(self) -> tuple[str, ...]:
        """In words, what the framework has nothing to write for."""
        return tuple(words for name, words in self.asked.items() if name not in self.told)

    @property
    def processes_per_node(self) -> int:
        """A process a device; in an asynchronous plan one a node, whose threads share it."""
        return 1 if self.configuration.mode == "async" else self.configuration.gpus_per_node

    def command(self, head: str = "FIRST_NODE", port: str = "", rank: str = "NODE_NUMBER", file: str = "") -> list[str]:
        """Return the words of the command, each as a shell reads it.

        ``head``, ``port``, ``rank``, ``file``: expressions of the shell for the first node and a free port of it, the
        node's number, and the file with the keys. Of several nodes each is given it, but for ``mpirun``.
        """
        nodes, each = self.configuration.nodes, self.processes_per_node
        words = STARTS[self.starter](nodes, each, head, port, rank, file)
        return [*words, *(file if word == FILE else shlex.quote(word) for word in (*self.program, *self.arguments))]


def wrapped(words: Iterable[str], width: int) -> list[str]:
    """Return the words of a command in lines of about ``width``, an option on the same one as its value."""
    options: list[str] = []
    for word in words:
        if word.startswith("-") or not options:
            options.append(word)
        else:
            options[-1] += f" {word}"
    lines = options[:1]
    for option in options[1:]:
        if len(lines[-1]) + len(option) < width:
            lines[-1] += f" {option}"
        else:
            lines.append(option)
    return lines


def _torchrun(nodes: int, each: int, head: str, port: str, *_: str) -> list[str]:
    if nodes == 1:
        return ["torchrun", "--standalone", "--nproc-per-node", str(each)]
    where = f"{head}:{port}" if port else head
    size = ["--nnodes", str(nodes), "--nproc-per-node", str(each)]
    return ["torchrun", *size, "--rdzv-backend", "c10d", "--rdzv-endpoint", where]


def _accelerate(nodes: int, _each: int, *where: str) -> list[str]:
    head, port, rank, file = where
    meet = ["--machine_rank", rank, "--main_process_ip", head, "--main_process_port", port or "29500"]
    return ["accelerate", "launch", "--config_file", file, *(meet if nodes > 1 else [])]


def _composer(nodes: int, each: int, head: str, port: str, rank: str, _file: str) -> list[str]:
    meet = ["--world_size", str(nodes * each), "--node_rank", rank, "--master_addr", head]
    return ["composer", "-n", str(each), *([*meet, "--master_port", port or "29500"] if nodes > 1 else [])]


STARTS: Mapping[str, Callable[..., list[str]]] = {
    "mpirun": lambda nodes, each, *_: [
        "mpirun", "-np", str(nodes * each), "--map-by", "node" if each == 1 else f"ppr:{each}:node"
    ],
    "torchrun": _torchrun, "accelerate": _accelerate, "composer": _composer,
}  # fmt: skip
"""What starts processes -> its command up to the program."""


def job_of(plan: PlanToStart, program: Sequence[str] = ()) -> Job:
    """Return what starts a plan; ``program``: the user's own, in place of the framework's."""
    one, settings = plan.configuration, plan.subject.settings
    framework = settings.framework
    values, asked = _values(plan), _asked(one, settings, plan.rank_order)
    written, told, known = _written(framework.writes, values, asked)
    starter = "mpirun" if one.mode == "async" else framework.starter
    variables = {key[1:]: str(value) for key, value in written.items() if _way(key) == VARIABLE}
    if framework.own_program:
        names = [*(name for name in asked if name in values), "optimizer", *["switches"] * bool(values["switches"])]
        variables = {f"{PREFIX}{name.upper()}": str(values[name]) for name in names} | variables
        for name in asked:
            if name not in known:
                told.setdefault(name, set()).add(VARIABLE)
    refusal = ""
    if plan.shared_layers and not framework.shares_layers:
        refusal = f"{framework.variant} does not share layers of such a network by itself"
    elif precision_named(one.precision).is_lossy:
        refusal = f"training in {one.precision} is research, which loses accuracy (docs/inference.md)"
    return Job(
        one,
        starter,
        tuple(program) or tuple((framework.program or _PROGRAMS[starter]).split()),
        tuple(word for key, value in written.items() if _way(key) == ARGUMENT for word in _words(key, value)),
        variables,
        _nested({key: value for key, value in written.items() if _way(key) == KEY}),
        asked,
        {name: frozenset(told[name]) for name in asked if name in told},
        _comment(one, asked, starter, is_own=framework.own_program),
        refusal,
    )


def _written(
    writes: Mapping[str, Mapping[str, Any]], values: Mapping[str, Any], asked: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, set[str]], set[str]]:
    """Return what is written, how each name is told, and the names that conditions are of, their first ones.

    Of conditions that write the same the one with more terms wins. In the order of what is asked; single words last.
    """
    found: dict[str, tuple[int, Any]] = {}
    told: dict[str, set[str]] = {}
    known, order = set(), {name: at for at, name in enumerate(("", *asked))}
    for condition, keys in sorted(writes.items(), key=lambda one: (len(one[0].split()), one[0])):
        terms = condition.split()
        first = terms[0] if terms else ""
        name = first if first.startswith("switch=") else first.partition("=")[0]
        known.add(name)
        if all(_holds(term, values, asked) for term in terms):
            told.setdefault(name, set()).update(map(_way, keys))
            place = order.get(name, len(order))
            found |= {key: (place, _filled(value, values)) for key, value in keys.items()}
    places = sorted(found, key=lambda key: (key.startswith("-="), found[key][0]))
    return {key: found[key][1] for key in places}, told, known


_PROGRAMS = {"mpirun": "PROGRAM", "torchrun": "train.py", "accelerate": "train.py", "composer": "train.py"}


def _values(plan: PlanToStart) -> dict[str, Any]:
    """Return what conditions ask for and templates are filled with, by name."""
    one, settings = plan.configuration, plan.subject.settings
    inside = max(1, one.gpus_per_node // one.tensor_parallel)
    ranks = min(one.weight_copies, inside) if one.shard_group == "node" else one.weight_copies
    layers, stages = plan.subject.layers, one.pipeline_parallel * one.virtual_stages
    even = even_layers(layers, np.array(stages), np.arange(stages), "equal").again.tolist() if stages > 1 else []
    chunks = [stage.layers for stage in plan.stage_layers] or even
    places = layers + 2  # where the first and the last layers of a pipeline count as a block each
    of_chunk = -(-places // stages) if layers else 0
    return {axis.name: getattr(one, axis.name) for axis in AXES} | {
        "gpus": one.gpus,
        "data_parallel": one.data_parallel,
        "replica_batch": one.sub_batch * one.accumulation_steps,
        "mini_batch": one.samples_per_update,
        "shard_ranks": max(1, ranks // one.context_parallel),
        "shard_copies": one.weight_copies // ranks,
        "weight_copies": one.weight_copies,
        "twice_the_stages": 2 * one.pipeline_parallel,
        "optimizer": settings.optimizer,
        "trainable": settings.trainable,
        "strategy": settings.strategy,
        "bucket_bytes": round(settings.bucket_bytes),
        "rank_order": ",".join(plan.rank_order or settings.placed_by),
        "blocks": "|".join(f"t*{layers}" if layers else "" for layers in chunks),
        "uneven": "yes" if len(set(chunks)) > 1 else "no",
        "layers_of_chunk": of_chunk,
        "looped": "yes" if of_chunk and -(-places // of_chunk) == stages else "no",
        "switches": "+".join(settings.framework.switched),
        "file": FILE,
    }


def _asked(one: Configuration, settings: Settings, rank_order: tuple[str, ...]) -> dict[str, str]:
    """Return what a program has to be told, in words, by name."""
    asked = {
        axis.name: axis.short.format(getattr(one, axis.name)) if axis.short else f"{axis.title} {value}"
        for axis in AXES
        if axis.name not in ("nodes", "gpus_per_node")  # which the start of the processes says
        and ((value := getattr(one, axis.name)) != axis.default or (axis.always_said and axis.name != "mode"))
    }
    framework, order = settings.framework, rank_order or settings.placed_by
    if settings.strategy != framework.strategy:
        asked["strategy"] = f"strategy {settings.strategy}"
    if settings.trainable != ALL:
        asked["trainable"] = f"trainable {settings.trainable}"
    if settings.bucket_bytes:
        asked["bucket_bytes"] = f"buckets of {size_words(settings.bucket_bytes)}"
    if order != framework.rank_order:
        asked["rank_order"] = f"ranks {','.join(order)}"
    return asked | {f"switch={name}": f"switch {name}" for name in framework.switched}


def _comment(one: Configuration, asked: Mapping[str, str], starter: str, *, is_own: bool) -> str:
    where = ["on each node"] if one.nodes > 1 and starter != "mpirun" else []
    threads = [f"{one.gpus_per_node} threads"] if one.mode == "async" else []
    if not is_own:
        return ", ".join(where)
    accumulate = f" x {one.accumulation_steps}" if one.accumulation_steps > 1 else ""
    names = ("trainable", "bucket_bytes", "rank_order")
    besides = [words for name, words in asked.items() if name in names or name.startswith("switch=")]
    return ", ".join(
        (*where, *threads, f"sub-batch {one.sub_batch}{accumulate}", one.precision, *one.besides, *besides)
    )


def _holds(term: str, values: Mapping[str, Any], asked: Mapping[str, str]) -> bool:
    """Return whether a term of a condition does: ``name``, what has to be told; ``name=value|value``."""
    name, is_value, of = term.partition("=")
    if name == "switch":
        return not {*of.split("|")}.isdisjoint(values["switches"].split("+"))
    return str(values[name]) in of.split("|") if is_value else name in asked


def _way(key: str) -> str:
    return ARGUMENT if key.startswith("-") else VARIABLE if key.startswith("$") else KEY


def _filled(value: Any, values: Mapping[str, Any]) -> Any:
    """Return a value of a record: a template that is a name alone has the type of what it names."""
    if not isinstance(value, str):
        return value
    return values[value[1:-1]] if value[1:-1] in values and value[0] + value[-1] == "{}" else value.format_map(values)


def _words(key: str, value: Any) -> tuple[str, ...]:
    """Return the words of an argument; of one that begins with ``-=`` the word behind it alone."""
    if value is True:
        return (key.removeprefix("-="),)
    return () if value is False else (key, str(value))


def _nested(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return keys with dots as tables in tables."""
    nested: dict[str, Any] = {}
    for top, group in groupby(sorted(keys), key=lambda key: key.partition(".")[0]):
        inner = {key.partition(".")[2]: keys[key] for key in group}
        nested[top] = inner[""] if "" in inner else _nested(inner)
    return nested
