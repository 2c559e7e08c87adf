"""Every option of every command, declared once: type, unit, default, help.

The parser, the help, the reading of ``planner.toml`` and the tests are derived from this table; the options of
a plan's axes from :mod:`planner.domain.axes`. Other choices repeat names of the domain records as text, because
``planner --help`` must not load NumPy; a test compares them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from planner.cli import parsing
from planner.cli.parsing import Parser
from planner.domain.axes import ALL, AXES, RANK_ORDER
from planner.domain.framework import STRATEGIES
from planner.domain.objective import LIMITS, TERMS
from planner.domain.precision import PRECISIONS

OPTIMIZERS = ("none", "sgd", "sgd-momentum", "nesterov", "adagrad", "rmsprop", "adam", "adam-8bit")
RANGE = "A,B|LO:HI[:STEP]"
TARGETS = ("torchrun", "slurm", "kubernetes", "ray", "deepspeed", "megatron", "torchtitan", "accelerate")
PARTS = ("answer", "plan", "terms", "sources", "request", "refusals", "warnings", "runs")


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    Attributes
    ----------
    parse : (what, text) to value; raises ParameterError
    repeatable, positional, is_distinct : and not said once
    several_in : commands that take it once a value, where others take one
    """

    name: str
    metavar: str
    help: str
    parse: Parser = parsing.text
    default: str = ""
    help_in: Mapping[str, str] = field(default_factory=dict)
    default_in: Mapping[str, str] = field(default_factory=dict)
    metavar_in: Mapping[str, str] = field(default_factory=dict)
    repeatable: bool = False
    positional: bool = False
    is_distinct: bool = False
    several_in: tuple[str, ...] = ()
    short: str = ""

    @property
    def flag(self) -> str:
        """As it is typed."""
        return self.metavar if self.positional else "--" + self.name.rstrip("_").replace("_", "-")

    @property
    def switch(self) -> bool:
        """Whether it stands alone, without a value."""
        return not self.metavar

    def metavar_of(self, command: str) -> str:
        """Return the placeholder of its value in the help of a command."""
        return self.metavar_in.get(command, self.metavar)

    def repeats(self, command: str) -> bool:
        """Return whether a command takes it several times."""
        return self.repeatable or command in self.several_in

    def text(self, command: str) -> str:
        """Return the help with the default."""
        repeat = " Repeatable." if self.repeats(command) else ""
        default = self.default_in.get(command, self.default)
        return f"{self.help_in.get(command, self.help)}{repeat}" + (f" [default: {default}]" if default else "")


@dataclass(frozen=True, slots=True)
class Command:
    """A command: what it does and the names of its options."""

    name: str
    help: str
    options: tuple[str, ...]


def _limits(*, is_least: bool) -> str:
    """Return the limits that --limit takes, in words."""
    return ", ".join(name for name, one in LIMITS.items() if one.is_least == is_least and not one.option)


def _options_of_axes() -> Iterator[Option]:
    """Yield the options of the axes of a plan, the mode first."""
    for axis in sorted(AXES, key=lambda axis: axis.name != "mode"):
        default = axis.default_in_suggest or str(axis.default)
        of_predict = axis.default_in_predict or (default if axis.default is None else str(axis.default))
        helps, defaults = {}, {} if of_predict == default else {"predict": of_predict}
        if axis.option == "precision":  # calibrate has it too
            helps["calibrate"] = f"Precisions to measure: {', '.join(PRECISIONS)}."
            defaults["calibrate"] = "all that a GPU has, fp32 on a CPU"
        metavar, parse = RANGE, parsing.numbers(axis.least, axis.most)
        if axis.option == "recompute":  # takes more than words
            metavar, parse = "none|selective|full|every:K|per-stage", parsing.recomputes(*axis.words)
        elif axis.words:
            metavar = "|".join(axis.words) if len(axis.words) < 4 else "A,B"
            parse = parsing.choices(*axis.words)
        yield Option(axis.option, metavar, axis.help, parse, default, helps, defaults)
        if axis.option == "sub_batch":
            help_of_it = "Samples per update; sets the sub-batch (synchronous only)."
            yield Option("mini_batch", "N", help_of_it, parsing.count)


_ALL = (
    Option(
        "network", "NAME[:K=V,...]|FILE|FILE.py:FACTORY", "Network to train.", default="default request",
        repeatable=True,
        help_in={"calibrate": "Network whose own layers are timed, to predict it better."},
        default_in={"calibrate": "none; a generic design serves all networks"},
    ),
    Option("dataset", "NAME|FILE|samples=N,bytes_per_sample=B", "Data set of an epoch.", default="the network's"),
    Option(
        "cluster", "NAME|FILE", "Cluster to train on.", default="this node ('local'), or the default request",
        help_in={
            "suggest": "Cluster to train on; of several, the best plan of each in one ranking.",
            "calibrate": "Cluster on which the logs of --samples were made.",
        },
        default_in={"calibrate": "any; matched by the calibration's name"}, several_in=("suggest",),
    ),
    Option("only_calibration", "", "Use what --calibration names alone: no other calibration, no data sheet."),
    Option(
        "calibration", "NAME|FILE", "Calibration to use; of several, the first that has an entry; then others.",
        default="this machine's own, then bundled ones", repeatable=True,
        help_in={"calibrate": "Calibration to refine, with --plan only; of several, the first that has an entry."},
        default_in={"validate": "bundled ones", "calibrate": "those of --plan, by their names"},
    ),
    Option(
        "framework", "NAME[@VERSION][:SWITCH+...]|FILE[,...]",
        "Training framework; 'generic' means any. Several are ranked together. 'planner show frameworks' lists their "
        "switches.",
        parsing.frameworks, "pytorch",
        help_in={
            "validate": "One training framework; 'generic' means any.",
            "render": "Framework whose best plan is written, where the answer has plans of several.",
            "predict": "Training framework; 'generic' means any. Several are predicted one by one. 'planner show "
            "frameworks' lists their switches.",
        },
        default_in={"validate": "that of each row", "render": "that of the plan to take"},
        metavar_in={"render": "NAME[@VERSION][:SWITCH+...]|FILE"},
    ),
    *_options_of_axes(),
    Option(
        "group", "NAME:nodes=N,sub-batch=N[,...]",
        "What a node group of the cluster does in a plan; also accumulation=N.",
        parsing.group, "none; nodes of one kind", repeatable=True, is_distinct=True,
    ),
    Option(
        "tensor_parallel", RANGE,
        "Tensor-parallel degrees, whose shards of each --network of attention blocks are timed too.", parsing.counts,
        "none",
    ),
    Option(
        "parallelism", "A,B", "Kinds of parallelism: data, model, pipeline, hybrid.",
        parsing.choices("data", "model", "pipeline", "hybrid"), "all that network and framework allow",
    ),
    Option(
        "rank_order", f"{','.join(RANK_ORDER)}|best",
        "Degrees in the order in which ranks are numbered and fill nodes, innermost first; best: the fastest order of "
        "each plan.", parsing.rank_order,
        "the framework's",
    ),
    Option("optimizer", "NAME", f"Optimizer: {', '.join(OPTIMIZERS)}.", parsing.choice(*OPTIMIZERS), "the network's"),
    Option(
        "trainable", "all|last:K|lora:rank=R[,targets=all]",
        "What is trained: all, the last K blocks (layers, where there are none), or LoRA adapters of rank R on the "
        "query and value projections, or on all.",
        parsing.trainable, ALL,
    ),
    Option(
        "strategy", "|".join(STRATEGIES).replace("bucketed", "bucketed[:SIZE]"),
        "How gradients are sent: layer by layer as they are ready, after the backward pass, in buckets, in the "
        "fastest buckets, at intervals, or to parameter servers.",
        parsing.strategy(*STRATEGIES), "the framework's",
    ),
    Option(
        "input", "synthetic|storage", "Where samples come from; storage adds reading time to the epoch.",
        parsing.choice("synthetic", "storage"), "storage, where it can be modelled",
    ),
    Option("scenario", "ITEM[+ITEM][,...]", "What if: fp16, edr, gpu=NAME, TERM*=X, LINK.KEY=VALUE; one answer each."),
    Option(
        "task", "training|inference", "What runs: steps of training, or batches of inference on one GPU each.",
        parsing.choice("training", "inference"), "training",
    ),
    Option("latency", "TIME", "Inference: longest time that a batch may take, as in 10ms.", parsing.time_limit, "none"),
    Option(
        "rate", "N", "Inference: samples/s of all replicas together.", parsing.whole(1, 10**12), "one replica's",
    ),
    Option("target_batch", "N[,...]", "Wanted mini-batch in samples; each of several is answered.", parsing.targets),
    Option(
        "tolerance", "25%|0.25", "Accepted distance of the mini-batch from the target, relative to it; for both modes.",
        parsing.tolerance, "25% asynchronous; synchronous exact, else the nearest mini-batch",
    ),
    Option(
        "objective", f"{'|'.join(TERMS)}|A:W+B:W",
        "What to minimise, or a weighted sum, each term over its own least, as in epoch-time:1+cost:0.2; cost needs "
        "[price] in the cluster's file.",
        parsing.objective, "epoch-time",
    ),
    Option(
        "limit", "KEY=VALUE,...",
        f"Upper limits of a plan: {_limits(is_least=False)}; as in epoch=1h,gpu-hours=500. Lower limits: "
        f"{_limits(is_least=True)}; as in efficiency=50%.",
        parsing.limits, "none",
    ),
    Option(
        "allow_specified", "",
        "Try fp8 and int8 from the data sheet too, where their products were not measured.",
    ),
    Option("allow_unknown", "", "Accept a network with unknown operators: they are priced by their bytes."),
    Option("allow_lossy", "", "Try what may lose accuracy too: training in int8, which is research."),
    Option(
        "switches", "",
        "Try every set of switches of each --framework that changes no result, besides those that it names.",
    ),
    Option(
        "why_not", "KEY=VALUE,...",
        "Say why plans with these values are not the answer: the constraint, or price and rank. "
        "Keys are options of a plan, as in nodes=16,precision=fp16.",
        parsing.pairs,
    ),
    Option(
        "search", "exact|optuna", "Search all plans, or by trials of Optuna.",
        parsing.choice("exact", "optuna"), "exact",
    ),
    Option(
        "time_limit", "TIME", "Time for the search; then the answer is the best so far, with how far off it may be.",
        parsing.time_limit, "none",
    ),
    Option(
        "trials", "N",
        "Plans that Optuna tries, in addition to those of the study.",
        parsing.whole(1, 10_000_000), "200",
    ),
    Option(
        "study", "FILE|URL",
        "Where Optuna keeps its trials, to continue later: a new or an earlier file (a journal), or a database.",
        default="nowhere",
    ),
    Option("storage", "URL|FILE", "Where the study is: the --study of suggest."),
    Option("top", "N", "Plans to report.", parsing.whole(1, 10_000), "5"),
    Option("pareto", "", "Also the Pareto front of the objective, GPUs and distance from the target."),
    Option(
        "sensitivity", "",
        "Also whether the best plan changes when bandwidth, kernel times, host time or memory alone changes by 10%.",
    ),
    Option(
        "runs", "FILE.csv|LOG|DIR",
        "A table of measured runs, or with --plan a log of Megatron, torchtitan or Hugging Face's Trainer.",
        repeatable=True,
        help_in={"calibrate": "Measured steps of the plans of --plan, split ones too, instead of runs on this node."},
    ),
    Option(
        "hold_out", "network|gpu|cluster|source",
        "Refit end-to-end coefficients without each of these in turn, and predict it.",
        parsing.choice("network", "gpu", "cluster", "source"),
    ),
    Option(
        "fit_on", "FILE.csv", "Measured runs to refit on; with --hold-out.", repeatable=True,
        default="every table of runs in the folder of --runs",
    ),
    Option("plot", "FILE.png|.svg|.pdf", "Draw predicted against measured times; needs Matplotlib.",
        help_in={"sweep": "Draw the objective against nodes, a line a sub-batch; needs Matplotlib."}),
    Option("device", "cpu|cuda[:I]", "What to measure.", parsing.device, "cuda where PyTorch sees a GPU, else cpu"),
    Option("links", "", "Measure the links between ranks: of this node, or those started by torchrun, srun or mpirun."),
    Option("ranks", "N", "Ranks that --links starts on this node.", parsing.whole(1, 1024), "one a GPU, one on a CPU"),
    Option("threads", "N|all", "CPU threads that form one device.", parsing.threads, "1"),
    Option("budget", "TIME", "Time for measuring, fitting and writing together, with its unit.", parsing.budget, "60s"),
    Option(
        "target_error", "5%|0.05",
        "Stop once the expected mean error on steps of the networks is this small.", parsing.error_aim,
        "the budget is used up",
    ),
    Option(
        "plan", "PLAN.json",
        "Answer (of suggest --json) whose plans are compared by a short run of each sub-batch and precision.",
        help_in={
            "render": "Number of the plan in the answer.",
            "validate": "Answer (of suggest --json) with the plan that --runs are the logs of.",
        },
        default_in={"render": "the one to take"}, metavar_in={"render": "N"},
    ),
    Option(
        "to", "|".join(TARGETS), "What reads the file: a scheduler, or a training program.", parsing.choice(*TARGETS)
    ),
    Option(
        "program", "WORDS", "Program to start and its arguments, quoted as one shell word.",
        parsing.words, default="that of the framework, else train.py",
    ),
    Option("image", "NAME", "Container image for kubernetes.", default="pytorch/pytorch"),
    Option(
        "samples", "FILE|DIR",
        "Fit sample files (CSV), or logs of nccl-tests, rccl-tests and OSU micro-benchmarks, instead of measuring.",
    ),
    Option("name", "NAME", "Name of the calibration.", default="that of --out or of --samples, else links or local",
        help_in={"render": "Name of the job."}, default_in={"render": "the network's"}),
    Option(
        "out", "FILE", "File to write; what was measured goes into X.samples.csv beside X.json.",
        default="a time-stamped file in the user data folder", short="-o",
        help_in=dict.fromkeys(("render", "report"), "File to write.")
        | {"verify": "File to write the calibration with these steps to."},
        default_in=dict.fromkeys(("render", "report"), "standard output") | {"verify": "none is written"},
    ),
    Option(
        "cluster_out", "X.toml", "Also write this node and its measured links as a cluster file.",
    ),
    Option("force", "", "Overwrite an existing output file."),
    Option(
        "epochs", "N", "Epochs of the whole training; the answer then has its time.", parsing.count,
        help_in={"render": "Epochs of the whole training, for the time limit of the job."},
        default_in={"render": "those of the answer, or one"},
    ),
    Option(
        "tokens", "N", "Tokens to train a language model on, as in 15e12; the answer then has its steps and time.",
        parsing.tokens,
    ),
    Option(
        "deadline", "TIME",
        "Time within which the whole training (--epochs, --tokens, else an epoch) must end, on the fewest nodes, then "
        "GPUs, that meet it.",
        parsing.time_limit, "none",
    ),
    Option("brief", "", "Only the plan to take."),
    Option("json", "", "Print one JSON document instead of tables."),
    Option(
        "choose", "fewest-gpus|fastest|least-regret", "Which plan to take of those tied with the best.",
        parsing.choice("fewest-gpus", "fastest", "least-regret"),
        "fewest-gpus at no more GPU-hours, then memory to spare, then the larger sub-batch, or smaller staleness",
    ),
    Option("verbose", "", "Also print the request, sources, refusals and all warnings.", short="-v"),
    Option(
        "position", "N", "Only the plan at this position.", parsing.whole(1, 10_000),
        help_in={"validate": "Position of the plan in --plan.", "verify": "Position of the plan in the answer."}
        | {"calibrate": "Position of the plan in --plan that logs of --runs are of."},
        default_in=dict.fromkeys(("calibrate", "validate", "verify"), "the one to take"),
    ),
    Option(
        "part", "PART", f"Only one part: {', '.join(PARTS)} (runs: a table to fill in for calibrate --runs).",
        parsing.choice(*PARTS), "all of them",
    ),
    Option(
        "answer", "ANSWER.json|-", "A document of suggest --json or predict --json; - reads standard input.",
        positional=True,
    ),
    Option(
        "requests", "[REQUESTS.jsonl|-]",
        'One request per line: keys are options, as in {"target_batch": 138}; - reads standard input.',
        default="-", positional=True,
    ),
    Option("seed", "N", "Seed of the random numbers.", parsing.whole(0, 2**63 - 1), "0"),
    Option("work", "", "Also every kernel of a step of one network: FLOP, bytes, and the ridge of rooflines."),
    Option("toml", "", "Print the file of one network, cluster, data set or framework, to start your own from."),
    Option("detect", "", "Print a cluster file of this machine and its Slurm, with questions where nothing was found."),
    Option(
        "from_", "FILE|-",
        "What --detect reads instead: saved output of sinfo, nvidia-smi (topo -m, nvlink -s), lspci, or gres.conf.",
        repeatable=True,
    ),
    Option("what", "networks|clusters|calibrations|datasets|accelerators|frameworks", "What to show.", positional=True),
    Option("item", "[NAME]", "A name or file: everything about one.", positional=True),
)  # fmt: skip

OPTIONS = {option.name: option for option in _ALL}

PLANS = "Plans"
PANELS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "What to train": (
        "--target-batch 512 --network gpt2:sequence=1024 --precision bf16",
        ("target_batch", "tolerance", "mini_batch", "network", "trainable", "allow_unknown", "dataset", "input",
         "optimizer", "precision", "mode", "task"),
    ),
    "On what": (
        "--cluster dgx-h100 --framework megatron --scenario inter_node.bandwidth=25GB/s",
        ("cluster", "framework", "switches", "calibration", "only_calibration", "scenario"),
    ),
    PLANS: ("--nodes 1,2,4 --sub-batch 4:16:4 --tensor 1,2 --pipeline 1", ()),
    "Objective and limits": (
        "--objective gpu-hours --limit efficiency=10% --deadline 500h --tokens 2e9",
        ("objective", "limit", "deadline", "epochs", "tokens", "choose", "latency", "rate"),
    ),
    "Search": ("--search exact --time-limit 20s", ("search", "time_limit", "trials", "study")),
    "Output": (
        "--json --seed 1",
        ("top", "pareto", "sensitivity", "why_not", "plot", "force", "brief", "verbose", "json", "seed", "help"),
    ),
}  # fmt: skip
"""Title -> example, and names of options: how the help of a command with many of them is grouped. An option of no other
panel describes plans, as those of axes do."""


def panel_of(name: str) -> str:
    """Return the title of the panel of an option."""
    return next((title for title, (_, names) in PANELS.items() if name in names), PLANS)


_PROBLEM = ("network", "dataset", "cluster", "calibration", "only_calibration", "framework", "mode")
_PLAN = (
    *(axis.option for axis in AXES if axis.name != "mode"), "rank_order", "optimizer", "trainable",
    "strategy", "input", "scenario", "task",
)  # fmt: skip

COMMANDS = (
    Command(
        "suggest",
        "Rank plans near a target mini-batch by epoch time or cost. "
        "Every network is answered under every scenario; exit code 4 when a question has no plan on any cluster.",
        (
            "target_batch", "tolerance", *_PROBLEM, *_PLAN, "allow_specified", "allow_lossy", "allow_unknown",
            "parallelism",
            "objective", "limit", "latency", "rate", "top", "pareto", "choose", "sensitivity", "epochs", "tokens",
            "deadline", "switches", "why_not", "search", "time_limit", "trials", "study", "verbose", "brief", "json",
            "seed",
        ),
    ),
    Command(
        "search-worker",
        "Run more trials of a study of suggest --search optuna. "
        "Here or on another machine; the study holds the request.",
        ("storage", "trials", "seed", "verbose", "brief", "json"),
    ),
    Command(
        "sweep",
        "Show the objective against nodes and sub-batch. "
        "The best plan of each pair; one network on one cluster.",
        (
            "target_batch", "tolerance", *_PROBLEM, *_PLAN, "allow_specified", "allow_lossy", "allow_unknown",
            "parallelism",
            "objective", "limit", "plot", "force", "json", "seed",
        ),
    ),
    Command(
        "predict",
        "Predict configurations, term by term.",
        (*_PROBLEM, *_PLAN, "mini_batch", "group", "allow_unknown", "runs", "verbose", "json", "seed"),
    ),
    Command("batch", "Answer requests, one JSON document per line. A bad one does not stop the rest.", ("requests",)),
    Command(
        "explain",
        "Print any part of an answer saved as JSON.",
        ("answer", "position", "part"),
    ),
    Command(
        "validate",
        "Compare predictions with measured runs. Errors, ranking, memory and intervals, row by row and summed up.",
        ("runs", "plan", "position", "calibration", "framework", "hold_out", "fit_on", "plot", "force", "json"),
    ),
    Command(
        "show",
        "Show what is bundled, or everything about one thing.",
        ("what", "item", "work", "trainable", "allow_unknown", "json", "toml", "detect", "from_"),
    ),
    Command(
        "calibrate",
        "Measure this node, fit the cost terms, write a calibration.",
        (
            "device", "threads", "links", "ranks", "budget", "target_error", "network", "tensor_parallel", "precision",
            "plan", "position", "runs", "calibration", "samples", "cluster", "nodes", "gpus_per_node", "name", "out",
            "cluster_out", "force", "json",
        ),
    ),
    Command(
        "verify",
        "Run a few steps of a plan here, beside their prediction. "
        "It is the part of one GPU; a CPU runs it where there is no GPU.",
        ("answer", "position", "device", "budget", "calibration", "only_calibration", "name", "out", "force", "json"),
    ),
    Command(
        "render",
        "Write a plan saved as JSON as a job file. Each of its values becomes a flag or key of the target.",
        ("answer", "to", "framework", "plan", "program", "name", "image", "epochs", "out", "force"),
    ),
    Command(
        "report",
        "Write an answer saved as JSON as one HTML page. "
        "It has curves against nodes and sub-batch, memory by stage and kernels too; needs Matplotlib.",
        ("answer", "out", "force"),
    ),
    Command("doctor", "Say what is installed and missing, and what needs it.", ("json",)),
)  # fmt: skip
