"""A training framework: the names it goes by, what it computes otherwise than others, and what a user may turn on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from itertools import combinations
from typing import Annotated, Any

from planner.domain.axes import ALL, BEST_ORDER, RANK_ORDER, SCHEDULES, check_rank_order, trainable_of
from planner.domain.keys import ALWAYS, Key
from planner.domain.precision import precision_named
from planner.errors import ParameterError, Refusal, UnknownNameError, UsageError, shown
from planner.units import parse_quantity

BUCKETED = "bucketed"
MIB = 2.0**20
"""In which people say sizes [byte]."""


def strategy_and_size(text: str, what: str = "--strategy") -> tuple[str, float]:
    """Return the name of a strategy and the size of its buckets [byte]; 0: the framework's own.

    >>> strategy_and_size("bucketed"), strategy_and_size("bucketed:8MiB")
    (('bucketed', 0.0), ('bucketed', 8388608.0))

    ParameterError: what follows the name is no size.
    """
    name, colon, size = text.partition(":")
    if colon and (name != BUCKETED or ":" in size or size == "best"):
        remedy = "best-fusion sends neighbouring gradients together in the fastest way"
        raise ParameterError(what, "of the form bucketed:25MiB where it says a size", text, remedy)
    return name, parse_quantity(size, "bytes", what) if colon else 0.0


def size_words(size_bytes: float) -> str:
    """Return a size as a strategy takes it, but for the space.

    >>> size_words(160432.128), size_words(25 * MIB)
    ('0.153 MiB', '25 MiB')
    """
    return f"{size_bytes / MIB:.6g} MiB"


@dataclass(frozen=True, slots=True)
class Strategy:
    """What overlaps in a synchronous step.

    Neighbouring layers are sent together when their gradients are as large as a bucket, the first to be ready and the
    others. Servers get the sum of the gradients of a node's GPUs, and give weights; else all GPUs sum gradients around.
    """

    prefetch: Annotated[bool, Key("whether input is loaded during the step before")] = True
    overlap: Annotated[bool, Key("whether gradients are sent as they become ready, not after them all")] = True
    first_bucket_bytes: Annotated[float, Key("gradients sent first; 0: by layer", name="first_bucket_MiB")] = 0.0
    bucket_bytes: Annotated[float, Key("gradients sent together later; 0: by layer", name="bucket_MiB")] = 0.0
    rank_parameters: Annotated[float, Key("parameters that each data-parallel rank adds to a bucket, if more")] = 0.0
    later_stages_whole: Annotated[bool, Key("whether stages behind the first send one message")] = False
    best_buckets: Annotated[bool, Key("whether what is sent together is what is done first")] = False
    cycle_s: Annotated[float, Key("how often what is ready is sent together; 0: when it is", name="cycle_ms")] = 0.0
    servers: Annotated[bool, Key("whether gradients go to parameter servers, one on each node")] = False

    @property
    def is_timed(self) -> bool:
        """Whether it depends on what is ready when which gradients are sent together."""
        return self.best_buckets or self.cycle_s > 0


BEST_FUSION = "best-fusion"
STRATEGIES: Mapping[str, Strategy] = {
    "wait-free": Strategy(),
    "no-overlap": Strategy(prefetch=False, overlap=False),
    # Defaults of PyTorch's DistributedDataParallel: the first bucket is small, so that sending begins early.
    "bucketed": Strategy(first_bucket_bytes=2.0**20, bucket_bytes=25 * 2.0**20),
    BEST_FUSION: Strategy(best_buckets=True),
    # Defaults of Horovod since 0.21; before, 64 MiB every 5 ms.
    "tensor-fusion": Strategy(bucket_bytes=128 * 2.0**20, cycle_s=1e-3),
    "parameter-server": Strategy(servers=True),
}
"""Strategies by name, as frameworks follow them that say nothing else."""


GRADIENT_TYPES = ("precision", "fp32", "fp16", "bf16")
"""What gradients are held or sent in: the gradients' type of the precision of training, or one of any."""
ANY = "any"
"""In place of a precision: all that are not named."""
UPDATE_THREADS = "update-threads"
ASYNCHRONOUS = ("none", UPDATE_THREADS, "parameter-server")
"""Not at all; by a thread of each node that sums and updates, as SPRINT; or by servers that hold the weights."""
CONTEXTS = ("positions", "heads")
"""Of a ring of ranks, each with two parts of the positions; or of ranks that exchange these for heads (Ulysses)."""
FEWEST = ("any", "stages", "stages - 1")
"""Micro-batches that a 1f1b schedule takes at least."""
DEALS = ("blocks", "ends", "equal")
"""How it deals out blocks to stages: evenly, the first have one more; so, with what stands before and behind them
counted as a block each; or equally many to each chunk between the first and the last, which have no more."""
WITH_LAWFUL = ("recompute", "sequence_parallel", "shard_group", "offload")
"""Axes of words of which it may lack values."""
STATE_TYPES = ("fp32", "bf16")
"""What an optimizer keeps moments in."""
PARALLELISMS = ("tensor", "context", "expert", "pipeline")
"""Ways to split a network over devices."""
REPEATED = ("attention", "second products")
"""The core of attention where that keeps its weights; or all of a layer but attention and each first of two products
(torchtitan)."""
TASKS = ("training", "inference")
"""What runs: whole steps, or forward passes alone."""
FUSIONS = ("activation", "residual", "softmax", "norm", "layer_norm", "attention", "epilogue")
"""Kernels that are one: the bias of a linear layer with the activation behind it, and gates with their products; the
bias with dropout and the sum behind it; scale, mask and softmax of the shapes that Megatron-LM takes; batch
normalisation with the activation behind it, and the sum between; layer normalisation with the sum before it; all of
attention, which then keeps no weights and drops none; of inference alone, all that a product can do as it writes its
result, batch normalisation folded into its weights."""
COMPOSED = ("gelu", "layer_norm", "dropout", "softmax")
"""What may be computed from primitives, each a kernel of its own; softmax: that of attention, with scale and mask."""
LAYOUTS = ("unstated", "nchw", "channels-last")
"""How images lie in memory: as in the runs that coefficients were fitted to, which hold what that costs; channel by
channel; or position by position."""
UPDATES = ("layer", "list", "primitive", "foreach", "arithmetic")
"""Kernels of an update: one a layer; one over many tensors; one an operation and tensor, or over many tensors; one a
sum, product, quotient or root of each tensor."""
LAUNCHES = ("eager", "executor", "compiled", "graph")
"""How kernels are launched: operation by operation, from Python or by the executor of a dataflow graph, which takes the
host as long where runs tell; by a compiled program; or as a graph that was recorded once."""
SENDS = ("kernels", "copies")
"""Kernels on the GPU's multiprocessors, as NCCL's, beside which others take longer; or copy engines and hosts."""
STAGES = ("blocks", "modules", "layers")
"""What its pipeline's stages are: attention blocks alone; modules that the user writes, of any network; or layers
of any network, which it deals out by itself."""
STARTERS = ("mpirun", "torchrun", "accelerate", "composer")
TARGETS = ("none", "megatron", "torchtitan", "deepspeed", "accelerate")
"""Whose flags or keys it takes."""
LOSSES = ("eager", "parallel", "fused", "split", "compiled")
"""Kernel by kernel on fp32 copies of logits; as Megatron-LM over a vocabulary split among tensor ranks; in one kernel;
kernel by kernel over a split vocabulary (DTensor); or in kernels that a compiler makes, of logits as they are."""
_NUMBERS = re.compile(r"\d+(?:\.\d+)*", re.ASCII)
_NAME = re.compile(r"[a-z][a-z0-9._+-]*", re.ASCII)


_SWITCHES = r"[\w.-]+(?:\+[\w.-]+)*"
_LABEL = re.compile(
    rf"(?P<name>.*\.toml|[^@:]*)(?::(?P<before>{_SWITCHES}))?(?:@(?P<version>.*?))?(?::(?P<behind>{_SWITCHES}))?"
)


@cache
def framework_parts(label: str) -> tuple[str, str, tuple[str, ...]]:
    """Return name, version and switches of ``name[@version][:switch+switch]``; switches may stand before the version.

    A name that ends in ``.toml`` is a file, whose folders may have any signs.

    >>> framework_parts("pytorch@1.12 (CUDA 11.3):channels-last+compile")
    ('pytorch', '1.12 (CUDA 11.3)', ('channels-last', 'compile'))
    >>> framework_parts("./a@b/own.toml:wide")
    ('./a@b/own.toml', '', ('wide',))
    """
    match = _LABEL.fullmatch(label)
    if match is None:
        return label, "", ()
    switches = "+".join(filter(None, (match["before"], match["behind"])))
    return match["name"], match["version"] or "", tuple(switches.split("+")) if switches else ()


def variant_and_version(label: str) -> tuple[str, str]:
    """Return the name with its switches, and the version, empty where there is none.

    >>> variant_and_version("pytorch@1.12:channels-last"), variant_and_version("mxnet")
    (('pytorch:channels-last', '1.12'), ('mxnet', ''))
    """
    name, version, switches = framework_parts(label)
    return label_of(name, "", switches), version


def label_of(name: str, version: str, switches: tuple[str, ...]) -> str:
    """Return ``name[@version][:switch+switch]``."""
    named = f"{name}@{version}" if version else name
    return f"{named}:{'+'.join(switches)}" if switches else named


@dataclass(frozen=True, slots=True)
class Switch:
    """What a user may turn on, which changes what a framework does: fields of Framework by name.

    In ``changes``, ``fuses`` is what is fused besides, ``strategies`` are followed in place of those of the same name.
    """

    changes: Mapping[str, Any]
    aliases: Annotated[tuple[str, ...], Key("names of the framework with this switch on, in lower case")] = ()
    needs: Annotated[tuple[str, ...], Key("other switches that are on with it")] = ()
    excludes: Annotated[tuple[str, ...], Key("other switches that cannot be on beside it")] = ()
    source: Annotated[str, Key("what it is, and where that comes from")] = ""

    @property
    def changes_results(self) -> bool:
        """Whether gradients or the optimizer's state are held or sent in another type: asked for, never advised."""
        return not {"gradient_type", "message_type", "state_type"}.isdisjoint(self.changes)


def _fact(doc: str, choices: Iterable[str] = (), *, default: Any) -> Any:
    """Return the field of a key of framework files; ``doc``: what it means, ``choices``: its words."""
    metadata = {"doc": doc, "choices": tuple(choices)}
    if isinstance(default, dict):
        return field(default_factory=dict, hash=False, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class Framework:
    """A framework, of a version and with switches on where they are asked for; what its facts mean stands with them.

    Attributes
    ----------
    version : free text; empty: any
    switches : those that are on changed the fields above
    switched : those that are on, in the order of ``switches``
    versions : mapping of str to mapping of str to Any, what older versions did otherwise: first numbers of a version ->
        fields by name; ``source``: where that is from
    sources : by key of its file; what is assumed says so
    """

    name: Annotated[str, Key("name to refer to it, in lower case; its overheads are looked up by it")]
    aliases: Annotated[tuple[str, ...], Key("other names, in lower case")] = ()
    input_gradient: bool = _fact("whether the gradient of the network's input is computed", default=False)
    gradient_type: Mapping[str, str] = _fact(
        "what gradients are held in, by precision; others: in its own type", GRADIENT_TYPES, default={}
    )
    message_type: Mapping[str, str] = _fact(
        "what gradients are sent in, by precision; others: as they are held", GRADIENT_TYPES, default={}
    )
    narrow_gradients: bool = _fact("whether those that kernels write stay beside wider ones", default=False)
    state_type: str = _fact("what the optimizer keeps moments in", STATE_TYPES, default="fp32")
    tasks: tuple[str, ...] = _fact("what it runs", TASKS, default=TASKS)
    strategy: str = _fact("when gradients are sent, where nothing else is asked for", STRATEGIES, default="wait-free")
    strategies: Mapping[str, Strategy] = _fact("those it follows in its own way", STRATEGIES, default={})
    can: tuple[str, ...] = _fact("ways in which it splits networks", PARALLELISMS, default=PARALLELISMS)
    schedules: tuple[str, ...] = _fact("orders of a pipeline's passes that it has", SCHEDULES, default=SCHEDULES)
    shardings: tuple[int, ...] = _fact("stages of sharding that it has", default=(0, 1, 2, 3))
    shardings_in_pipeline: tuple[int, ...] = _fact("the same beside a pipeline", default=(0, 1, 2, 3))
    shardings_in_layers: tuple[int, ...] = _fact(
        "the same where tensor or context ranks have copies", default=(0, 1, 2, 3)
    )
    lawful: Mapping[str, tuple[str, ...]] = _fact("values of other axes, where it lacks some", WITH_LAWFUL, default={})
    asynchronous: str = _fact("how replicas update weights that do not wait", ASYNCHRONOUS, default=UPDATE_THREADS)
    context: str = _fact("what context-parallel ranks divide in attention", CONTEXTS, default="positions")
    copies_keys: bool = _fact("whether more tensor ranks than heads of keys and values copy them", default=True)
    experts_take_sequence: bool = _fact("whether tensor ranks with experts are sequence parallel", default=False)
    fewest_micro_batches: str = _fact("how many a 1f1b schedule takes at least", FEWEST, default="any")
    fuses: tuple[str, ...] = _fact(
        "what its kernels do in one: bias and activation, bias and sum, scale, mask and softmax, norm and activation",
        FUSIONS,
        default=(),
    )
    composes: tuple[str, ...] = _fact(
        "what it computes from primitives, each a kernel of its own", COMPOSED, default=()
    )
    layout: str = _fact("how images lie in memory", LAYOUTS, default="unstated")
    update: str = _fact(
        "kernels of an update: one a layer, over many tensors, or one an operation", UPDATES, default="layer"
    )
    launch: str = _fact("how kernels are launched", LAUNCHES, default="eager")
    scatters_boundary: bool = _fact("whether tensor ranks send parts to the next stage", default=False)
    stages: str = _fact("what its pipeline's stages are", STAGES, default="modules")
    shares_layers: bool = _fact("whether ranks share single layers of networks without blocks", default=False)
    deals: str = _fact(
        "how it deals out blocks to stages: evenly, with both ends counted, or equally", DEALS, default="blocks"
    )
    selective: str = _fact("what selective recompute makes again", REPEATED, default="attention")
    sends_by: str = _fact(
        "what moves messages: kernels on the GPU, or copies that hosts start", SENDS, default="kernels"
    )
    overlaps_tensor: bool = _fact("whether messages of tensor ranks run beside products", default=False)
    gathers_ahead: int = _fact("units gathered ahead where weights are sharded", default=1)
    loss: str = _fact("how the loss of tokens is computed", LOSSES, default="eager")
    pads_vocabulary: bool = _fact("whether it is rounded up to 128 rows a tensor rank", default=False)
    pads_products: bool = _fact("whether sides of products are rounded up to 16 bytes", default=False)
    main_gradients: bool = _fact("whether the optimizer reads fp32 copies of gradients", default=False)
    output_buffers: int = _fact("micro-batches whose logits the last stage keeps; 0: those that wait alone", default=0)
    keeps_weight_shards: bool = _fact("whether sharding 3 keeps shards of narrow weights", default=True)
    casts: bool = _fact("whether operators cast what they read, so that norms and sums are fp32", default=False)
    frees_gradients: bool = _fact("whether they are there from backward pass to update alone", default=False)
    bucket_copies: bool = _fact("whether buckets of whole replicas are a second copy of gradients", default=False)
    whole_gradients: bool = _fact("whether pipelines scatter them behind the last micro-batch alone", default=False)
    buffer_millions: int = _fact("parameters, in millions, of each buffer that shards are sent in", default=0)
    compiles_loss: bool = _fact("whether the loss is compiled where the network is", default=True)
    context_mebibytes: int = _fact("what libraries take of a GPU before the first tensor; 0: assumed", default=0)
    tries_convolutions: bool = _fact("whether algorithms are tried, with what is free to work in", default=False)
    rank_order: tuple[str, ...] = _fact("how ranks are numbered, innermost first", RANK_ORDER, default=RANK_ORDER)
    starter: str = _fact("what starts its processes", STARTERS, default="mpirun")
    program: str = _fact("what it starts where the user says nothing; empty: a program of theirs", default="")
    own_program: bool = _fact("whether the user writes it, and it reads the plan from variables", default=True)
    target: str = _fact("whose flags or keys tell it a plan", TARGETS, default="none")
    writes: Mapping[str, Mapping[str, bool | int | str]] = _fact(
        "what tells its program a plan: by condition, values by flag (-), variable ($) or key of a file", default={}
    )
    source: Annotated[str, Key("where this comes from")] = ""
    version: str = ""
    switches: Annotated[Mapping[str, Switch], Key("what a user may turn on, by name", pattern="[a-z][a-z0-9.-]*")] = (
        field(default_factory=dict, hash=False, compare=False)
    )
    switched: tuple[str, ...] = ()
    versions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False, compare=False)
    sources: Mapping[str, str] = field(default_factory=dict, hash=False, compare=False)

    def __post_init__(self) -> None:
        aliases = (*self.aliases, *(alias for one in self.switches.values() for alias in one.aliases))
        for what, name in (("name", self.name), *(("aliases", alias) for alias in aliases)):
            if not _NAME.fullmatch(name):
                raise ParameterError(what, "lower-case letters, digits and . _ + -, a letter first", name)
        for one in FACTS:
            value, known = getattr(self, one.name), one.metadata["choices"]
            if isinstance(value, str) and known and value not in known:
                raise UnknownNameError(one.name, value, known)
        for name in (other for one in self.switches.values() for other in (*one.needs, *one.excludes)):
            if name not in self.switches:
                raise UnknownNameError("switch", name, self.switches)
        check_rank_order("rank_order", self.rank_order)

    @classmethod
    def labelled(cls, label: str) -> Framework:
        """Return a framework by its label alone, which does as most do."""
        name, version, switches = framework_parts(label)
        return cls(name, version=version, switched=switches)

    @property
    def label(self) -> str:
        """``name[@version][:switch+switch]``."""
        return label_of(self.name, self.version, self.switched)

    @property
    def variant(self) -> str:
        """The label without the version: what coefficients of its overheads are looked up by."""
        return label_of(self.name, "", self.switched)

    def of_version(self, version: str) -> Framework:
        """Return the framework as a version of it is, without switches: the one of ``versions`` with most numbers.

        >>> Framework("x", versions={"1": {"update": "primitive"}}).of_version("1.12 (CUDA 11.3)").update
        'primitive'
        """
        numbers = _NUMBERS.match(version)
        began = [one for one in self.versions if numbers and f"{numbers[0]}.".startswith(f"{one}.")]
        changes = dict(self.versions[max(began, key=len)]) if began else {}
        changes.pop("source", None)
        return replace(self, version=version, **changes)

    @property
    def schedule(self) -> str:
        """Of a pipeline of which none is asked for: 1f1b, or the first that it has."""
        return "1f1b" if "1f1b" in self.schedules else self.schedules[0]

    @property
    def has_known_version(self) -> bool:
        """Whether ``versions`` know the version: one of theirs, or of the major number behind them, as it is now."""
        numbers = _NUMBERS.match(self.version)
        majors = [int(one.partition(".")[0]) for one in self.versions]
        return not numbers or not majors or min(majors) <= int(numbers[0].partition(".")[0]) <= max(majors) + 1

    def with_switches(self, names: Iterable[str]) -> Framework:
        """Return the framework with switches on, and what they need; in the order in which it declares them.

        UnknownNameError: it has no such switch.
        UsageError: two of them exclude each other.
        """
        asked = {*self.switched, *names}
        if not asked:
            return self
        for name in sorted(asked):
            if name not in self.switches:
                remedy = "" if self.switches else "It has none."
                raise UnknownNameError(f"switch of framework {self.name}", name, self.switches, remedy)
        while needed := {need for name in asked for need in self.switches[name].needs} - asked:
            asked |= needed
        ordered = tuple(name for name in self.switches if name in asked)
        if barred := self._excluded(ordered):
            of = f"framework {self.name}"
            rule, got = f"switches {barred[0]} and {barred[1]} of {of} exclude each other", shown("+".join(ordered))
            raise UsageError(Refusal(ParameterError.code, rule, of, got, "; leave one of them out"))
        changes: dict[str, Any] = {"fuses": self.fuses, "strategies": self.strategies}
        for one in (self.switches[name].changes for name in ordered):
            fuses = tuple(dict.fromkeys((*changes["fuses"], *one.get("fuses", ()))))
            strategies = {**changes["strategies"], **one.get("strategies", {})}
            changes |= {**one, "fuses": fuses, "strategies": strategies}
        return replace(self, **changes, switched=ordered)

    def switch_sets(self) -> Iterator[tuple[str, ...]]:
        """Yield every lawful set of switches that change no result, the empty one first, in the order of the file."""
        tried = [name for name, switch in self.switches.items() if not switch.changes_results]
        for size in range(len(tried) + 1):
            for names in combinations(tried, size):
                needed = {need for name in names for need in self.switches[name].needs}
                if needed <= set(names) and not self._excluded(names):
                    yield names

    def _excluded(self, names: tuple[str, ...]) -> tuple[str, str] | None:
        """Return the first of some switches that excludes another of them, and that; None: there is none."""
        pairs = ((one, other) for one in names for other in names if other in self.switches[one].excludes)
        return next(pairs, None)

    def gradient_bytes(self, precision: str) -> int:
        """Return the bytes of a gradient element as it is held.

        >>> PYTORCH.gradient_bytes("bf16"), Framework("megatron-lm").gradient_bytes("bf16")
        (4, 2)
        """
        held = _of_precision(self.gradient_type, precision, "precision")
        return precision_named(precision if held == "precision" else held).gradient_bytes

    def message_bytes(self, precision: str) -> int:
        """Return the bytes of a gradient element as it is sent.

        >>> Framework("fsdp", gradient_type={"any": "fp32"}, message_type={"bf16": "bf16"}).message_bytes("bf16")
        2
        """
        sent = _of_precision(self.message_type, precision, "")
        return (
            precision_named(precision if sent == "precision" else sent).gradient_bytes
            if sent
            else (self.gradient_bytes(precision))
        )


def _of_precision(types: Mapping[str, str], precision: str, otherwise: str) -> str:
    return types.get(precision, types.get(ANY, otherwise))


FACTS = tuple(one for one in fields(Framework) if one.metadata)
"""What a framework does; a switch changes some of it."""
GENERIC = Framework("generic")
"""Stands for any other."""
PYTORCH = Framework(
    "pytorch", gradient_type={ANY: "fp32"}, strategy="bucketed", keeps_weight_shards=False, casts=True,
    frees_gradients=True, bucket_copies=True, whole_gradients=True, tries_convolutions=True, context_mebibytes=1113,
    schedules=("gpipe", "1f1b", "interleaved", "zero-bubble", "zero-bubble-v"), fewest_micro_batches="stages",
    layout="nchw", update="foreach", starter="torchrun",
)  # fmt: skip
"""What is assumed where no framework is named; as in its file."""


OPTIMIZERS = {
    "none": 0, "sgd": 0, "sgd-momentum": 4, "nesterov": 4, "adagrad": 4, "rmsprop": 4, "adam": 8, "adam-8bit": 2,
}  # fmt: skip
"""Optimizer names and bytes of fp32 state per parameter (adam-8bit: two moments of one byte)."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What all candidates of a request share.

    Attributes
    ----------
    strategy : ``wait-free``, each layer's gradient is sent when it is ready; ``bucketed``, so are buckets of
        neighbouring layers; ``best-fusion``, so are those buckets that are done first; ``tensor-fusion``, what is ready
        at each cycle; ``parameter-server``, each layer's goes to servers; ``no-overlap``, each layer's after the
        backward pass
    rank_order : order of planner.domain.axes.RANK_ORDER in which ranks are numbered; empty: the framework's;
        BEST_ORDER: of each plan that split the network the fastest
    bucket_bytes : of strategy ``bucketed``, the first too
    trainable : as of :func:`planner.domain.axes.trainable_of`
    """

    optimizer: Annotated[str, Key("optimizer", absent=ALWAYS, choices=tuple(OPTIMIZERS))] = "sgd-momentum"
    strategy: Annotated[str, Key("what overlaps in a synchronous step", absent=ALWAYS, choices=tuple(STRATEGIES))] = (
        "wait-free"
    )
    input: Annotated[str, Key("where samples come from", absent=ALWAYS, choices=("storage", "synthetic"))] = "storage"
    framework: Framework = PYTORCH
    rank_order: tuple[str, ...] = ()
    bucket_bytes: Annotated[float, Key("gradients of a bucket; absent: the framework's")] = 0.0
    trainable: Annotated[str, Key(f"which parameters are trained; absent: {ALL}")] = ALL

    def __post_init__(self) -> None:
        check_rank_order("rank_order", self.placed_by)
        trainable_of(self.trainable, "trainable")
        if self.bucket_bytes and self.strategy != BUCKETED:
            raise ParameterError("bucket_bytes", f"0 with strategy {self.strategy}", self.bucket_bytes)
        for what, value, choices in (
            ("optimizer", self.optimizer, tuple(OPTIMIZERS)),
            ("strategy", self.strategy, tuple(STRATEGIES)),
            ("input", self.input, ("storage", "synthetic")),
        ):
            if value not in choices:
                raise ParameterError(what, "one of " + ", ".join(choices), value)

    def trained_in(self, framework: Framework) -> Settings:
        """Return the same in another framework: gradients go its way where no other was asked for."""
        is_own = self.strategy == self.framework.strategy and not self.bucket_bytes
        return replace(self, framework=framework, strategy=framework.strategy if is_own else self.strategy)

    @property
    def placed_by(self) -> tuple[str, ...]:
        """The order in which ranks are numbered, innermost first, where plans do not choose."""
        return self.framework.rank_order if self.chooses_order else self.rank_order or self.framework.rank_order

    @property
    def chooses_order(self) -> bool:
        """Whether each plan has the order that is fastest for it."""
        return self.rank_order == BEST_ORDER

    @property
    def overlap(self) -> Strategy:
        """What the strategy is in the framework.

        A size that is given is that of the first bucket too, as in DistributedDataParallel with ``bucket_cap_mb``
        (pytorch/pytorch, torch/nn/parallel/distributed.py, ``bucket_bytes_cap_default``).
        """
        own = self.framework.strategies.get(self.strategy, STRATEGIES[self.strategy])
        size = self.bucket_bytes
        return replace(own, first_bucket_bytes=size, bucket_bytes=size) if size else own
