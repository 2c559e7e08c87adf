"""Job files: what starts a plan by hand, under Slurm, Kubernetes or Ray, and the files of training programs.

Text of the user, which names of networks and clusters are too, stands in a file quoted by the rules of its language
alone, or in a comment on one line.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from textwrap import indent
from typing import Any

from planner.domain.job import ARGUMENT, FILE, KEY, VARIABLE, Job, PlanToStart, wrapped
from planner.errors import ParameterError, printable
from planner.units import format_duration

PORT = "29500"
"""On which the first node waits for the others."""
WITHOUT_INTERVAL = 1.5
"""Times the estimate that a job may run where no interval is known."""
WIDTH = 100
"""Of a line of a command."""
START_S = 600.0
"""Of a job, before its first step."""


@dataclass(frozen=True, slots=True)
class Task:
    """What is rendered.

    ``words``: the plan in words; ``image``: of the container; ``remedy``: where a target cannot say the plan.
    """

    plan: PlanToStart
    job: Job
    words: str
    name: str
    image: str
    remedy: str = "take another plan, by --plan"

    @property
    def gpus(self) -> int:
        """GPUs of a node; 0: it computes on CPUs."""
        return self.job.configuration.gpus_per_node if self.plan.subject.device == "GPU" else 0


def time_limit_s(plan: PlanToStart) -> float | None:
    """Return how long a job may run: the upper end of its interval, and a start; None: no epoch is known."""
    if plan.training_s is None:
        return None
    return START_S + (plan.training_s.high or WITHOUT_INTERVAL * plan.training_s.value)


def render(target: str, task: Task) -> str:
    """Return the file of a target, one of TARGETS; ParameterError where it cannot say the plan."""
    write, ways = TARGETS[target]
    job, framework = task.job, task.plan.subject.settings.framework
    own = "" if framework.target == "none" else framework.target
    others = [name for name, (_, of) in TARGETS.items() if of == EVERY]
    rule = f"a target of its framework, {', '.join((*others, *filter(None, [own])))}"
    what = f"--to of a plan in {framework.name}"
    if job.refusal:
        raise ParameterError("the plan", "one that a line starts", task.words, job.refusal)
    if len(job.configuration.groups) > 1:
        raise ParameterError("the plan", "of equal nodes", "one across node groups", "start each group by hand")
    if ways != EVERY and target != own:
        raise ParameterError(what, rule, target)
    if target in ("ray", "kubernetes") and job.starter not in STARTED_IN[target]:
        raise ParameterError(f"--to {target}", f"of a plan that {' or '.join(STARTED_IN[target])} starts", job.starter)
    unsaid = [words for name, words in job.asked.items() if job.told.get(name) and job.told[name].isdisjoint(ways)]
    if job.untold or unsaid:
        who = framework.variant if job.untold else f"the file of {target}"
        rule = f"of values that {who} has a flag or key for"
        starters = " or ".join(name for name in others if job.starter in STARTED_IN.get(name, (job.starter,)))
        remedy = task.remedy if job.untold else f"{task.remedy}, or --to {starters}, which tells the program all of it"
        raise ParameterError("the plan", rule, (*job.untold, *unsaid)[0], remedy)
    return write(task)


def _about(task: Task, mark: str = "#") -> str:
    """Return what a file is, as comments of one line each."""
    plan, subject = task.plan, task.plan.subject
    lines = [f"planner: {subject.network} on {subject.cluster}, plan {plan.position}: {task.words}."]
    lines += [f"A step takes {format_duration(plan.iteration_s.value, 2)}."]
    if plan.training_s is not None:
        lines[-1] += f" {plan.run.words}: {format_duration(plan.training_s.value, 2)}."
    return "".join(f"{mark} {printable(line)}\n" for line in lines)


def _node_script(task: Task, *, head: str, rank: str, endpoint_id: str = "") -> str:
    """Return the lines of the shell that each node runs; ``"$@"`` goes to the program."""
    job = task.job
    lines = [f"export {name}={shlex.quote(value)}" for name, value in job.variables.items()]
    if job.keys:
        text = _yaml(job.keys) if job.starter == "accelerate" else _json(job.keys)
        lines += [
            f'plan_file="$(mktemp -d)/{job.file_name}"',
            f"cat > \"$plan_file\" <<'END_OF_PLAN'\n{text}END_OF_PLAN",
        ]
    words = job.command(head, PORT, rank, '"$plan_file"')
    if endpoint_id and "--rdzv-endpoint" in words:
        words[words.index("--rdzv-endpoint") : 0] = ["--rdzv-id", endpoint_id]
    if job.starter == "mpirun":
        words[5:5] = [word for name in job.variables for word in ("-x", name)]
    start = len(words) - len(job.program) - len(job.arguments)
    command = [*wrapped(words[:start], WIDTH), *wrapped([*words[start:], '"$@"'], WIDTH)]
    return "\n".join([*lines, " \\\n  ".join(command)])


def _torchrun(task: Task) -> str:
    several = task.job.configuration.nodes > 1 and task.job.starter != "mpirun"
    needs = ': "${HEAD:?set it to the name of the first node, on every node}"\n' if several else ""
    counts = several and task.job.starter != "torchrun"
    needs += ': "${NODE:?set it to the number of this node, from 0}"\n' if counts else ""
    body = _node_script(task, head='"$HEAD"', rank='"$NODE"')
    each = "# Run it on each node.\n" if several else ""
    return f"#!/usr/bin/env bash\n{_about(task)}{each}set -euo pipefail\n{needs}{body}\n"


def _slurm(task: Task) -> str:
    job, limit = task.job, time_limit_s(task.plan)
    nodes = job.configuration.nodes
    tasks = job.processes_per_node if job.starter == "mpirun" else 1  # a task a GPU would start GPUs squared
    options = [f"job-name={re.sub('[^A-Za-z0-9._-]+', '-', task.name)}", f"nodes={nodes}", f"ntasks-per-node={tasks}"]
    options += [f"gpus-per-node={task.gpus}"] if task.gpus else []
    options += ["exclusive"] if nodes > 1 else []
    options += [f"time={_minutes(limit)}"] if limit else []
    header = "".join(f"#SBATCH --{option}\n" for option in options)
    body = _node_script(task, head='"$HEAD"', rank='"$SLURM_NODEID"', endpoint_id='"$SLURM_JOB_ID"')
    top = f"#!/usr/bin/env bash\n{header}{_about(task)}set -euo pipefail\n"
    if job.starter == "mpirun":
        return f"{top}{body}\n"
    return (
        f'{top}HEAD="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)"\nexport HEAD\n'
        f"on_each_node() {{\n{body}\n}}\nexport -f on_each_node\n"
        'srun --kill-on-bad-exit --cpu-bind=none bash -euo pipefail -c \'on_each_node "$@"\' plan "$@"\n'
    )


def _minutes(limit_s: float) -> str:
    minutes = math.ceil(limit_s / 60)
    days, minutes = divmod(minutes, 24 * 60)
    return f"{days}-{minutes // 60:02}:{minutes % 60:02}:00"


def _kubernetes(task: Task) -> str:
    job, limit = task.job, time_limit_s(task.plan)
    nodes, name = job.configuration.nodes, _label(task.name)
    gpus = {"resources": {"limits": {"nvidia.com/gpu": task.gpus}}} if task.gpus else {}
    body = _node_script(task, head=f"{name}-0.{name}", rank='"$JOB_COMPLETION_INDEX"', endpoint_id=name)
    container = {
        "name": "training",
        "image": task.image,
        "command": ["bash", "-euo", "pipefail", "-c", f"{body}\n", "plan"],
        **gpus,
        "volumeMounts": [{"name": "shared-memory", "mountPath": "/dev/shm"}],  # noqa: S108 - of the container
    }
    pod = {
        "restartPolicy": "Never",
        "subdomain": name,
        "containers": [container],
        "volumes": [{"name": "shared-memory", "emptyDir": {"medium": "Memory"}}],
    }
    spec = {
        "completions": nodes,
        "parallelism": nodes,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        **({"activeDeadlineSeconds": math.ceil(limit)} if limit else {}),
        "template": {"metadata": {"labels": {"app": name}}, "spec": pod},
    }
    service = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"app": name}}
    documents = [
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": service},
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec},
    ]
    return _about(task) + "---\n".join(map(_yaml, documents[nodes == 1 :]))


def _label(text: str) -> str:
    """Return a name of Kubernetes that is nearest: lower case, a letter first, short enough for the names of pods."""
    return re.sub("[^a-z0-9]+", "-", text.lower()).strip("-").lstrip("-0123456789")[:50].rstrip("-") or "plan"


_RAY = """
import json
import os
import runpy
import sys
import tempfile

from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer

VARIABLES = {variables}
ARGUMENTS = {arguments}
KEYS = {keys}


def train():
    os.environ.update(VARIABLES)
    path = os.path.join(tempfile.mkdtemp(), "plan.json")
    with open(path, "w") as file:
        json.dump(KEYS, file)
    sys.argv[1:] = [path if word == {file!r} else word for word in ARGUMENTS]
    {run}


if __name__ == "__main__":
    scaling = ScalingConfig(num_workers={workers}, use_gpu={gpu}, placement_strategy="PACK")
    TorchTrainer(train, scaling_config=scaling).fit()
"""


def _ray(task: Task) -> str:
    job = task.job
    is_module = job.program[0] == "-m"
    program, *before = job.program[is_module:]
    run = "run_module" if is_module else "run_path"
    return _about(task) + _RAY.format(
        variables=repr(dict(job.variables)),
        arguments=repr([*before, *job.arguments]),
        keys=repr(dict(job.keys)),
        file=FILE,
        run=f"runpy.{run}({program!r}, run_name='__main__'{', alter_sys=True' if is_module else ''})",
        workers=job.configuration.gpus,
        gpu=bool(task.gpus),
    )


def _arguments(task: Task) -> str:
    """Return a file that a shell sources: the start of processes is its reader's."""
    job = task.job
    program = shlex.join(job.program)
    variables = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in job.variables.items())
    words = "\n".join(wrapped(map(shlex.quote, job.arguments), WIDTH))
    how = "source this file, then start {} {} on {} ranks"
    start = how.format(printable(program), '"${PLAN[@]}"', job.configuration.gpus)
    return f"{_about(task)}# In bash {start}.\n{variables}PLAN=(\n{indent(words, '  ')}\n)\n"


def _json(keys: Mapping[str, Any]) -> str:
    return json.dumps(keys, indent=2) + "\n"


def _yaml_file(task: Task) -> str:
    script = "".join(f"# Of the script: {name}={value}\n" for name, value in task.job.variables.items())
    return f"{_about(task)}{script}{_yaml(task.job.keys)}"


def _yaml(value: Any) -> str:
    return "\n".join(_yaml_lines(value)) + "\n"


def _yaml_lines(value: Any) -> Iterator[str]:
    """Yield tables and lists in blocks; text is quoted as in JSON, of many plain lines as a block."""
    for key, item in value.items() if isinstance(value, Mapping) else [("", one) for one in value]:
        before = f"{key}:" if isinstance(value, Mapping) else "-"
        if isinstance(item, Mapping | list) and item:
            inner = [f"  {line}" for line in _yaml_lines(item)]
            yield from [f"- {inner[0].lstrip()}", *inner[1:]] if before == "-" else [before, *inner]
        elif isinstance(item, str) and _is_plain_block(item):
            yield f"{before} |"
            yield from (f"  {line}" if line else "" for line in item.splitlines())
        else:
            yield f"{before} {_yaml_text(item) if isinstance(item, str) else json.dumps(item)}"


def _is_plain_block(text: str) -> bool:
    lines = text.split("\n")
    is_shown = all(line.isascii() and line.isprintable() for line in lines)
    return len(lines) > 2 and lines[-1] == "" != lines[-2] and lines[0][:1] not in ("", " ") and is_shown


def _yaml_text(text: str) -> str:
    return json.dumps(text, ensure_ascii=True) if text.isascii() else '"' + "".join(map(_escaped, text)) + '"'


def _escaped(sign: str) -> str:
    return json.dumps(sign)[1:-1] if ord(sign) < 0x10000 else f"\\U{ord(sign):08X}"


EVERY = frozenset((ARGUMENT, VARIABLE, KEY))
TARGETS: Mapping[str, tuple[Callable[[Task], str], frozenset[str]]] = {
    "torchrun": (_torchrun, EVERY),
    "slurm": (_slurm, EVERY),
    "kubernetes": (_kubernetes, EVERY),
    "ray": (_ray, EVERY),
    "deepspeed": (lambda task: _json(task.job.keys), frozenset((KEY,))),
    "megatron": (_arguments, frozenset((ARGUMENT, VARIABLE))),
    "torchtitan": (_arguments, frozenset((ARGUMENT, VARIABLE))),
    "accelerate": (_yaml_file, frozenset((KEY, VARIABLE))),
}
"""Name -> what writes its file, and how it tells a program values."""
STARTED_IN = {"ray": ("torchrun",), "kubernetes": ("torchrun", "accelerate", "composer")}
"""Targets that do not start all kinds of processes."""
