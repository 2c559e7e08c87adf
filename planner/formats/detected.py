"""What Slurm, the driver and the system say of nodes, as the draft of a cluster's file: facts, and questions.

A text is recognised by what stands in it, so that one saved on another machine serves as one that was just printed:
``sinfo`` (a table with GRES, or ``--json``), ``gres.conf``, ``slurm.conf``, ``scontrol show node``, ``nvidia-smi``
(``-L``, ``--query-gpu=... --format=csv``, ``topo -m``, ``nvlink -s``), ``lspci`` (with ``-vv`` its links), and files of
the system as ``grep . FILES`` prints them. In the draft every fact has its source beside it; what no text says is a
question.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from planner.errors import InputFileError, printable, shortened, shown
from planner.formats.documents import parse_text

SINFO = ("sinfo", "-a", "-e", "-o", "%N %D %P %T %c %m %G")
COMMANDS = {
    "sinfo": SINFO,
    "nvidia-smi": (
        "nvidia-smi", "--query-gpu=name,memory.total,pcie.link.gen.max,pcie.link.width.max", "--format=csv",
    ),
    "nvidia-smi topo -m": ("nvidia-smi", "topo", "-m"),
    "nvidia-smi nvlink -s": ("nvidia-smi", "nvlink", "-s"),
    "lspci": ("lspci", "-vv"),
}  # fmt: skip
"""Name -> command of what is read here."""
MOST_NODES = 100_000
_UNUSABLE = re.compile(r"(?i)down(?!_)|drain|drng|fail|err|futu?r|inval|.*\*|.*[+](down|drain|fail|not_resp)")
"""States of nodes that start no jobs; one that is powered down is started for them."""
PCIE_LANE_GBPS = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
"""PCI Express generation -> bytes a lane moves each way [GB/s]: 2.5 to 64 GT/s less its line code (PCI-SIG)."""
PCIE_SPEEDS = {"2.5": 1, "5": 2, "8": 3, "16": 4, "32": 5, "64": 6}
NVLINKS = {
    "p100": (4, 20), "v100": (6, 25), "a100": (12, 25), "a800": (8, 25), "h100": (18, 25), "h800": (8, 25),
    "h200": (18, 25), "gh200": (18, 25), "b200": (18, 50), "gb200": (18, 50),
}  # fmt: skip
"""NVLinks of a GPU, and what one moves each way [GB/s] (NVIDIA's architecture white papers)."""
MOST_NVLINKS = 18
PATHS = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""What lies between two devices by ``nvidia-smi topo -m``, nearest first: one PCIe switch to another socket."""
ADAPTER_KINDS = {"InfiniBand": "infiniband", "Ethernet": "roce"}
VIRTUAL = ("lo", "docker", "veth", "br", "virbr", "ib", "tun", "tap", "ifb", "cali", "flannel")
COLUMNS = {"NODELIST", "PARTITION", "GRES", "NODES", "AVAIL", "STATE", "CPUS", "MEMORY"}
"""Of tables of ``sinfo``, some; two of them make a header."""
RECOGNISED = "that of sinfo (with its header and GRES), gres.conf that lists GPUs, nvidia-smi, lspci or files of /sys"


@dataclass(frozen=True, slots=True)
class Machine:
    """A node as Slurm describes it; None: unknown. ``also``: GPUs of other types; ``state``: if it starts no jobs."""

    gpus: int = 0
    gpu: str = ""
    cpus: int | None = None
    memory_mib: float | None = None
    source: str = ""
    also: str = ""
    state: str = ""


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU by its driver, or by ``lspci``; ``pcie``: generation and lanes of its link."""

    name: str
    memory_bytes: float | None
    pcie: tuple[int, int] | None
    source: str


@dataclass(slots=True)
class Seen:
    """What all texts say: nodes by name; and of the one node that the others come from, GPUs, paths and adapters."""

    nodes: dict[str, Machine] = field(default_factory=dict)
    devices: list[Device] = field(default_factory=list)
    paths: list[list[str]] = field(default_factory=list)
    paths_source: str = ""
    nvlink_gbps: float | None = None
    system: dict[str, str] = field(default_factory=dict)
    host: str = ""


def read_reports(texts: Mapping[str, str], host: str = "") -> Seen:
    """Return what texts say, by their sources; ``host``: name of the node that those without node names come from."""
    seen = Seen(host=host)
    for source, text in texts.items():
        if not any(reader(text, source, seen) for reader in READERS):
            problem = f"text must be {RECOGNISED}, got {shown(text.strip().partition(chr(10))[0])}"
            raise InputFileError(source, problem)
    return seen


def _sinfo_table(text: str, source: str, seen: Seen) -> bool:
    lines = [one.replace("HOSTNAMES", "NODELIST").replace("|", " ").split() for one in text.splitlines()]
    is_header = (len({*words} & COLUMNS) > 1 and {*words} & {"NODELIST", "PARTITION", "GRES"} for words in lines)
    at = next((at for at, found in enumerate(is_header) if found), None)
    if at is None:
        return False
    for name in ("NODELIST", "GRES"):
        if name not in lines[at]:
            remedy = f"print it by {' '.join(SINFO[:-1])} {SINFO[-1]!r} for 'planner show clusters --detect --from'"
            raise InputFileError(source, f"column {name} must be there, got {' '.join(lines[at])}; {remedy}")
    for words in lines[at + 1 :]:
        if len(words) == len(lines[at]):
            row = dict(zip(lines[at], words, strict=True))
            facts = (row.get("CPUS"), row.get("MEMORY"), row.get("STATE"))
            _add(seen, _expanded(row["NODELIST"], source), row["GRES"], facts, source)
    return True


def _sinfo_json(text: str, source: str, seen: Seen) -> bool:
    if not text.lstrip().startswith("{"):
        return False
    document = parse_text(text, source, "json")
    try:
        for one in document.get("nodes", ()):  # up to Slurm 22.05
            facts = (one.get("cpus"), one.get("real_memory"), one.get("state"))
            _add(seen, [str(one["name"])], str(one.get("gres")), facts, source)
        for one in document.get("sinfo", ()):
            facts = (one["cpus"]["maximum"], one["memory"]["maximum"], one.get("node", {}).get("state"))
            _add(seen, list(map(str, one["nodes"]["nodes"])), str(one["gres"]["total"]), facts, source)
    except (AttributeError, KeyError, TypeError):
        raise InputFileError(source, "document must be as sinfo --json prints it, got other keys") from None
    return bool(document.keys() & {"nodes", "sinfo"})


_PAIR = re.compile(r"(\w+)=(\S*)")


def _configuration(text: str, source: str, seen: Seen) -> bool:
    """Read lines of ``key=value``; what is indented goes on with the node before it."""
    records: list[dict[str, str]] = []
    for line in text.splitlines():
        pairs = dict(_PAIR.findall(line.partition("#")[0]))
        if line[:1].isspace() and records:
            records[-1] |= pairs
        elif pairs.keys() & {"NodeName", "Name"}:
            records.append(pairs)
    parts: dict[str, list[str]] = {}
    for one in records:
        gres = one.get("Gres", "")
        if one.get("Name") == "gpu":
            count = one.get("Count") or len(_expanded(one.get("File", ""), source)) or 1
            gres = ":".join(filter(None, ("gpu", one.get("Type"), str(count))))
        names = [name for name in _expanded(one.get("NodeName", "this node"), source) if name != "DEFAULT"]
        for name in names if gres or "NodeName" in one else ():
            parts.setdefault(name, []).append(gres)
            facts = one.get("CPUTot") or one.get("CPUs"), one.get("RealMemory"), one.get("State")
            _add(seen, [name], ",".join(parts[name]), facts, source)
    return bool(parts)


def _add(seen: Seen, names: Sequence[str], gres: str, facts: tuple[object, object, object], source: str) -> None:
    """Add nodes with their generic resources, such as ``gpu:a100:4(S:0-1),nvme:1``, CPUs, memory [MiB] and state."""
    types: Counter[str] = Counter()
    for one in re.sub(r"\([^)]*\)", "", gres).split(","):
        kind, *words = one.strip().split(":")
        if kind == "gpu":
            count = int(words.pop()) if words and re.fullmatch(r"\d{1,4}", words[-1]) else 1
            types[":".join(words)] += count
    (gpu, gpus), *others = types.most_common() or [("", 0)]
    cpus, memory = (_whole(one) for one in facts[:2])
    state = "+".join(map(str, facts[2])) if isinstance(facts[2], list) else str(facts[2] or "")
    also = ", ".join(f"{count} {name}" for name, count in others)
    state = state.lower() if _UNUSABLE.match(state) else ""
    machine = Machine(gpus, gpu, cpus, memory, f"{source}: {gres}" if gpus else source, also)
    for name in names:
        before = seen.nodes.get(name, Machine())
        best = machine if gpus or not before.gpus else before
        cpus_of, memory_of, state_of = cpus or before.cpus, memory or before.memory_mib, state or before.state
        seen.nodes[name] = replace(best, cpus=cpus_of, memory_mib=memory_of, state=state_of)
    if len(seen.nodes) > MOST_NODES:
        raise InputFileError(source, f"nodes must be at most {MOST_NODES:,}, got more")


def _whole(value: object) -> int | None:
    match = re.match(r"\d+", str(value))
    return int(match[0][:18]) if match else None


def _expanded(words: str, source: str) -> list[str]:
    """Return the names of a list such as ``gpu[001-003,7],login``."""
    names: list[str] = []
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", words):
        made = [""]
        for plain, inside in re.findall(r"([^\[]*)(?:\[([^\]]*)\])?", part):
            numbers = list(_numbers(inside, source)) or [""]
            if len(made) * len(numbers) + len(names) > MOST_NODES:
                raise InputFileError(source, f"names of {shown(words)} must be at most {MOST_NODES:,}, got more")
            made = [f"{start}{plain}{number}" for start in made for number in numbers]
        names += made
    return names


def _numbers(inside: str, source: str) -> Iterator[str]:
    for one in filter(None, inside.split(",")):
        first, _, last = one.partition("-")
        if not (first.isdecimal() and (last or first).isdecimal() and len(one) < 2 * 18):
            raise InputFileError(source, f"numbers in brackets must be as in [001-004,7], got {shown(inside)}")
        if int(last or first) - int(first) > MOST_NODES:
            raise InputFileError(source, f"names must be at most {MOST_NODES:,}, got {shown(inside)}")
        yield from (f"{number:0{len(first)}d}" for number in range(int(first), int(last or first) + 1))


def _topology(text: str, source: str, seen: Seen) -> bool:
    rows = [line.split() for line in text.splitlines() if re.match(r"GPU\d+\s", line)]
    if not rows or not all("X" in row for row in rows):
        return False
    seen.paths, seen.paths_source = [row[1 : len(rows) + 1] for row in rows], source
    return True


def _driver(text: str, source: str, seen: Seen) -> bool:
    """Read names of GPUs: of ``-L``, ``nvlink -s`` or a table with a header; and the rates of links."""
    found = [Device(name, None, None, source) for name in re.findall(r"(?m)^GPU \d+: (.+?) \(UUID", text)]
    rates = re.findall(r"(?m)^\s*Link \d+: ([\d.]+) GB/s", text)
    if re.match(r"name, ", text.lstrip()):
        for row in csv.DictReader(text.strip().splitlines(), skipinitialspace=True):
            values = {str(key).partition(" ")[0]: str(value) for key, value in row.items()}
            memory = _whole(values.get("memory.total"))
            generation, lanes = (_whole(values.get(f"pcie.link.{what}.max")) or 0 for what in ("gen", "width"))
            pcie = (generation, lanes) if generation in PCIE_LANE_GBPS and lanes else None
            found.append(Device(values["name"], memory and memory * 2.0**20, pcie, source))
    if rates:
        seen.nvlink_gbps = min(map(float, rates))
    if not seen.devices or any(one.memory_bytes for one in found):
        seen.devices = found or seen.devices
    return bool(found or rates)


_BUS_GPU = re.compile(
    r"\S+ (?:3D|VGA compatible|Display) controller: NVIDIA.*?\[([^\]]+)\]"
    r"|\S+ (?:Processing accelerators|Display controller): Advanced Micro Devices.*?\[(?=.*Instinct)([^\]]+)\]$"
)


def _bus(text: str, source: str, seen: Seen) -> bool:
    """Read the GPUs of ``lspci``, where the driver names none."""
    parts = re.split(r"(?m)^(?=(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f] )", text)
    found = []
    for part in parts:
        if first := _BUS_GPU.match(part):
            link = re.search(r"LnkCap:.*?Speed ([\d.]+)GT/s.*?Width x(\d+)", part)
            pcie = (PCIE_SPEEDS[link[1]], int(link[2])) if link and link[1] in PCIE_SPEEDS else None
            found.append(Device(first[1] or first[2], None, pcie, source))
    seen.devices = seen.devices or found
    return len(parts) > 1


def _system(text: str, source: str, seen: Seen) -> bool:
    values = dict(re.findall(r"(?m)^(/(?:sys|proc)/[^:\s]+):[ \t]*(.*)$", text))
    seen.system |= values
    return bool(values) and bool(source)


READERS = (_sinfo_json, _sinfo_table, _topology, _driver, _bus, _system, _configuration)


def known_of(text: str, source: str) -> str:
    """Return what a text says of nodes, in a few words; empty: it is none that is recognised.

    InputFileError where it is one, but not with what is needed of it.
    """
    seen = Seen()
    if not any(reader(text, source, seen) for reader in READERS):
        return ""
    groups = [f"{len(names)} x {one.gpus} {one.gpu}".strip() for names, one in _groups(seen)[0] if one.gpus]
    number = len(seen.devices) or len(seen.paths)
    return " and ".join(groups) or (f"{number} GPUs of a node" if number else "nodes without GPUs")


Group = tuple[list[str], Machine]


def _groups(seen: Seen) -> tuple[list[Group], list[Group]]:
    """Return the names of nodes that are alike, with what they have: of those with GPUs that run jobs, and of others.

    Where no node has GPUs, or none of them runs jobs, the others are the nodes of the cluster.
    """
    alike: dict[Machine, list[str]] = {}
    for name, one in seen.nodes.items():
        alike.setdefault(one, []).append(name)
    every = [(names, one) for one, names in alike.items()]
    kept = [group for group in every if group[1].gpus and not group[1].state]
    kept = kept or [group for group in every if group[1].gpus] or every
    return kept, [group for group in every if group not in kept]


@dataclass(frozen=True, slots=True)
class Row:
    """A key, its value (None: a question), and where it comes from, or what is asked and how to find out."""

    key: str
    value: str | float | None
    words: str


@dataclass(frozen=True, slots=True)
class Section:
    """A table of the file; one that is not ``needed`` stands there as a comment."""

    header: str
    rows: Sequence[Row]
    needed: bool = True

    def lines(self) -> Iterator[str]:
        """Yield its lines."""
        mark = "" if self.needed else "# "
        yield from ("", mark + self.header) if self.header else ()
        for row in self.rows:
            is_plain = isinstance(row.value, bool | str)
            shown_value = "?" if row.value is None else json.dumps(row.value) if is_plain else f"{row.value:.6g}"
            line = f"{mark if row.value is not None else '# '}{row.key} = {shown_value}"
            yield f"{line:<34}  # {printable(row.words)}" if row.words else line


FIRST_LINES = [
    "# Behind a value stands where it comes from. A line with '?' is a question: put the value there and take",
    "# away the first '# '. What is all comment may stay so.",
]
Names = Callable[[str, float | None], tuple[tuple[str, ...], bool]]


def draft(seen: Seen, names_of: Names) -> tuple[str, list[str]]:
    """Return the text of a cluster's file, and the keys that it asks for.

    ``names_of``: name and memory [byte] of a GPU -> bundled names it may have, and whether it is the first; where none
    is bundled, its own.
    """
    groups, left_out = _groups(seen)
    mixed = len(groups) > 1
    is_one_here = any(_is_here(seen, names, one) for names, one in groups)
    top = [Row("format", "planner/cluster", ""), Row("version", 1, ""), Row("name", "mine", "any name")]
    sections: list[Section] = []
    for names, one in groups or [([], Machine())]:
        is_here = _is_here(seen, names, one) or not (mixed or seen.host)
        count = len(names) if names and names != ["this node"] else 1 if not names and seen.host else None
        words = f"{one.source.partition(':')[0]}: {_short(names)}" if names else "this machine"
        words += f"; {one.state}" * bool(one.state)
        ask = "how many nodes are alike: sinfo lists them; more than one need [links.inter_node]"
        nodes = Row("count" if mixed else "nodes", count, ask if count is None else words)
        rows, accelerator, gpus, likely = _node(seen, one, names_of, is_here=is_here)
        where = "node_groups.links" if mixed else "links"
        if mixed:
            alike = sum((of.gpu, of.gpus) == (one.gpu, one.gpus) for _, of in groups)
            group = f"{one.gpu or 'gpu'}-{one.gpus}" + (f"-{names[0]}" if alike > 1 else "")
            rows = [Row("name", group, "any name"), nodes, *rows]
            sections.append(Section("[[node_groups]]", rows))
        else:
            top.append(nodes)
            sections += [Section("[node]", rows), *accelerator]
        if gpus > 1:
            sections.append(Section(f"[{where}.intra_node]", _intra(seen, likely, is_here=is_here)))
        sections.append(Section(f"[{where}.host]", _host(seen, is_here=is_here), needed=False))
    many = any(len(names) > 1 for names, _ in groups) or mixed
    is_here = any(seen.host in names for names, _ in groups) or not seen.host or not seen.nodes
    sections.append(Section("[links.inter_node]", _inter(seen, is_here=is_here), needed=many))
    sections += [
        Section("[storage]", [Row("read_GBps", None, "of a node; shared = true: of a server for all")], needed=False),
        Section("[price]", [Row("usd_per_gpu_hour", None, "for --objective cost")], needed=False),
    ]
    lines = [line for section in [Section("", top), *sections] for line in section.lines()]
    notes = dict[str, list[str]]()
    for names, one in left_out:
        notes.setdefault(f"in state {one.state}" if one.gpus else "without GPUs", []).extend(names)
    first = [
        f"# Nodes {why} are left out: {_short(names)}{f' ({len(names):,})' * (len(names) > 1)}."
        for why, names in notes.items()
    ]
    if mixed and not seen.host and not is_one_here:
        says = " and ".join(f"{count} by {source}" for source, count in _counts(seen).items())
        first.append(f"# ? Which nodes are these, GPUs of a node: {says}? No group below has so many of their kind.")
    lines[:0] = FIRST_LINES + [printable(line) for line in first]
    asked = [f"{one.header.strip('[]')}.{row.key}".strip(".") for one in [Section("", top), *sections] if one.needed
             for row in one.rows if row.value is None]  # fmt: skip
    return "\n".join(lines) + "\n", asked


def _is_here(seen: Seen, names: Sequence[str], one: Machine) -> bool:
    """Tell whether texts without node names belong to these nodes: by host name, else by number and type of GPUs."""
    if not names or seen.host:
        return not names or seen.host in names
    return _is_of_type(seen, one) and next(iter(_counts(seen).values()), one.gpus) == one.gpus


def _is_of_type(seen: Seen, one: Machine) -> bool:
    """Tell whether the first GPU may be of the type that Slurm states."""
    kind, *first = (re.sub(r"\W|_", "", name.lower()) for name in (one.gpu, *[of.name for of in seen.devices[:1]]))
    return not first or kind in first[0]


def _counts(seen: Seen) -> dict[str, int]:
    """Return how many GPUs texts without node names show, by source."""
    both = (seen.devices[0].source if seen.devices else "", len(seen.devices)), (seen.paths_source, len(seen.paths))
    return {source: count for source, count in both if count}


_NUMBERED = re.compile(r"(?m)^(.*?)([0-9]{0,18})$")


def _short(names: Sequence[str]) -> str:
    """Return names as Slurm lists them: ``gpu[001-016,020]``."""
    runs: dict[tuple[str, bool], list[list[str]]] = {}
    for start, digits in sorted(_NUMBERED.findall("\n".join(names)), key=lambda one: (one[0], int(one[1] or 0))):
        found = runs.setdefault((start, bool(digits)), [])
        if found and digits and f"{int(found[-1][-1]) + 1:0{len(found[-1][-1])}d}" == digits:
            found[-1][1:] = [digits]
        else:
            found.append([digits])
    words = [f"{start}[{','.join('-'.join(run) for run in found)}]" for (start, _), found in runs.items()]
    return shortened(re.sub(r"\[(\d*)\]", r"\1", " ".join(words)))


def _node(
    seen: Seen, one: Machine, names_of: Names, *, is_here: bool
) -> tuple[list[Row], list[Section], int, tuple[str, ...]]:
    """Return the rows of a node, the table of a GPU that is not bundled, its number of GPUs, and names of them."""
    devices = seen.devices if is_here else []
    rows: list[Row] = []
    accelerator: list[Section] = []
    likely: tuple[str, ...] = ()
    gpus = one.gpus or len(devices) or (len(seen.paths) if is_here else 0)
    source = one.source if one.gpus else devices[0].source if devices else seen.paths_source
    if not gpus:
        how = 'gpu = "cpu.json" after: planner calibrate --device cpu --out cpu.json'
        rows += [Row("gpus", 1, "no GPU was found; the CPU is one device"), Row("gpu", None, how)]
    else:
        kinds = list(dict.fromkeys(replace(device, pcie=None) for device in devices))
        name, memory = (kinds[0].name, kinds[0].memory_bytes) if kinds else (one.gpu, None)
        likely, is_sure = names_of(name, memory) if name else ((), False)
        others = [f"{of}: {count}" for of, count in _counts(seen).items() if is_here and count != gpus]
        also = f"; also {one.also}" if one.also else "".join(f"; {other}, which is right?" for other in others)
        rows.append(Row("gpus", None if others else gpus, f"{source if one.gpus else f'{source}: {gpus}'}{also}"))
        ask = "nvidia-smi -L tells, on a node"
        if devices and not _is_of_type(seen, one):
            rows.append(Row("gpu", None, f"{one.source}; {devices[0].source}: {name}; which is right?"))
        elif len(kinds) > 1:
            rows.append(Row("gpu", None, "one of " + ", ".join(kind.name for kind in kinds) + ": make groups of nodes"))
        elif is_sure:
            says = kinds[0].source if kinds else one.source.partition(":")[0]
            rows.append(Row("gpu", likely[0], f"{says}: {name}"))
        elif memory:
            rows.append(Row("gpu", likely[0], f"{source}: {name}; it is not bundled"))
            sheet = "its data sheet says"
            accelerator = [Section("[accelerator]", [
                Row("memory_GiB", memory / 2.0**30, f"{source}: memory.total"),
                Row("memory_bandwidth_GBps", None, sheet),
                Row("peak_TFLOPps", None, f"{sheet}, as in {{ fp32 = 19.5, bf16 = 312 }}, dense"),
            ])]  # fmt: skip
        elif likely:
            rows.append(Row("gpu", None, f"{name}: {' or '.join(likely)}? {ask}"))
        else:
            rows.append(Row("gpu", None, f"{name or 'its name'}: 'planner show accelerators' lists names; {ask}"))
    total = _whole(seen.system.get("/proc/meminfo", "").removeprefix("MemTotal:").strip())
    present = re.fullmatch(r"(?:0-)?(\d+)", seen.system.get("/sys/devices/system/cpu/present", ""))
    for key, value, local in (
        ("host_memory_GiB", one.memory_mib and one.memory_mib / 1024, total and total / 2**20),
        ("cpu_threads", one.cpus, present and int(present[1]) + 1),
    ):
        if value or (is_here and local):
            words = one.source.partition(":")[0] if value else "/proc/meminfo" if "memory" in key else "/sys"
            rows.append(Row(key, value or local, words))
    return rows, accelerator, gpus, likely


LATENCY = "of one message: 'planner calibrate --links' measures it"


def _intra(seen: Seen, likely: Sequence[str], *, is_here: bool) -> list[Row]:
    latency = Row("latency_us", None, LATENCY)
    if not (is_here and seen.paths):
        ask = "nvlink, nvswitch or pcie4: nvidia-smi topo -m tells, on a node (--from reads it)"
        return [Row("kind", None, ask), Row("bandwidth_GBps", None, "of a GPU, one direction"), latency]
    source = seen.paths_source
    links = [[int(path[2:]) if re.fullmatch(r"NV\d+", path) else 0 for path in row] for row in seen.paths]
    reached, todo = {0}, [0]  # over NVLinks from the first GPU
    while todo:
        new = {at for at, count in enumerate(links[todo.pop()]) if count} - reached
        reached |= new
        todo += new
    if len(reached) == len(links) > 1:
        return [*_nvlinks(links, likely, seen), latency]
    worst = max((path for row in seen.paths for path in row if path in PATHS), key=PATHS.index, default="SYS")
    some = ", NVLink between some alone" if any(map(any, links)) else ""
    pcie = next((one.pcie for one in seen.devices if one.pcie), None)
    most = f"; the link of a GPU has {_pcie_words(pcie)}" if pcie else ""
    ask = f"of a GPU, one direction, over {worst}: 'planner calibrate --links' measures it{most}"
    kind = Row("kind", f"pcie{pcie[0]}" if pcie and 3 <= pcie[0] <= 5 else "pcie", f"{source}: {worst} at worst{some}")
    return [kind, Row("bandwidth_GBps", None, ask), latency]


def _nvlinks(links: Sequence[Sequence[int]], likely: Sequence[str], seen: Seen) -> list[Row]:
    """Return kind and bandwidth: links of a pair are its own, or through switches the same for all pairs."""
    total, one = [sum(row) for row in links], max(links[0])
    records = {NVLINKS.get(name.partition("-")[0]) for name in likely}
    known = records.pop() if len(records) == 1 else None
    is_even = all(count == one for at, row in enumerate(links) for to, count in enumerate(row) if to != at)
    is_switched = is_even and max(total) > (known[0] if known else MOST_NVLINKS)
    rate, words = (known[1], "NVIDIA's white paper") if known else (seen.nvlink_gbps, "nvidia-smi nvlink -s")
    count = one if is_switched else min(total)
    kind: str | None = "nvswitch" if is_switched else "nvlink"
    how = f"{seen.paths_source}: {count} links of each GPU{', the same to all' if is_switched else ''}"
    if is_even and not is_switched and (len(links) == 2 or known is None) and one > 1:
        kind, how = None, f"nvlink, or nvswitch where switches join them; each pair has {one} links"
        rate = rate if len(links) == 2 else None
    ask = f"of a GPU, one direction; a pair has {one} links, whose rates nvidia-smi nvlink -s prints"
    bandwidth = Row("bandwidth_GBps", rate and rate * count, f"{count} links of {rate:g} ({words})" if rate else ask)
    return [Row("kind", kind, how), bandwidth]


def _pcie_words(pcie: tuple[int, int]) -> str:
    return f"{PCIE_LANE_GBPS[pcie[0]] * pcie[1]:.3g} GB/s (PCIe {pcie[0]} x{pcie[1]})"


def _host(seen: Seen, *, is_here: bool) -> list[Row]:
    device = next((one for one in seen.devices if one.pcie), None) if is_here else None
    ask = "host to device, per GPU; 'planner calibrate --links' measures it"
    if device is None or device.pcie is None:
        return [Row("kind", None, "pcie3, pcie4, pcie5"), Row("bandwidth_GBps", None, ask)]
    kind = Row("kind", f"pcie{device.pcie[0]}", f"{device.source}: x{device.pcie[1]}")
    return [kind, Row("bandwidth_GBps", None, f"{ask}; the link has {_pcie_words(device.pcie)}")]


def _inter(seen: Seen, *, is_here: bool) -> list[Row]:
    """Return what the adapters of this node say of the network: those for messages, else the fastest of Ethernet."""
    latency = Row("latency_us", None, LATENCY)
    ports: dict[tuple[str, str], dict[str, str]] = {}
    speeds: dict[str, int] = {}
    for path, value in seen.system.items() if is_here else ():
        if port := re.fullmatch(r"/sys/class/infiniband/([^/]+)/ports/(\d+)/(\w+)", path):
            ports.setdefault((port[1], port[2]), {})[port[3]] = value
        elif value.isdecimal() and (net := re.fullmatch(r"/sys/class/net/([^/]+)/speed", path)):
            speeds |= {} if net[1].startswith(VIRTUAL) else {net[1]: int(value)}
    active = {key: one for key, one in ports.items() if "ACTIVE" in one.get("state", "ACTIVE") and _rate(one)}
    if active:
        counts = Counter((_rate(one), one.get("link_layer", ""), key[0]) for key, one in active.items())
        rate, layer, _ = max(counts, key=lambda one: one[0] * sum(one[:2] == of[:2] for of in counts))
        alike = [key for key, one in active.items() if (_rate(one), one.get("link_layer", "")) == (rate, layer)]
        others = f"; {len(active) - len(alike)} others are slower or faster" if len(alike) < len(active) else ""
        is_efa = alike[0][0].startswith(("rdmap", "efa"))
        kind = "efa" if is_efa else ADAPTER_KINDS.get(layer)
        rows = [
            Row("kind", kind, f"/sys/class/infiniband: link_layer {layer}" if kind else "infiniband, roce or efa"),
            Row("bandwidth_GBps", rate / 8, f"/sys/class/infiniband: rate {rate:g} Gb/s of an adapter"),
            Row("nics_per_node", len(alike), f"/sys/class/infiniband: {_short([key[0] for key in alike])}{others}"),
        ]
        if "/sys/module/nvidia_peermem/initstate" in seen.system:
            rows.append(Row("gpu_direct", True, "/sys/module/nvidia_peermem is loaded"))  # noqa: FBT003 - the value
        return [*rows, latency]
    if speeds:
        name = max(speeds, key=speeds.__getitem__)
        words = f"/sys/class/net/{name}/speed: {speeds[name]:,} Mb/s"
        rows = [Row("kind", "ethernet", "no active port in /sys/class/infiniband")]
        return [*rows, Row("bandwidth_GBps", speeds[name] / 8e3, words), latency]
    return [
        Row("kind", None, "infiniband, roce, efa or ethernet: ls /sys/class/infiniband /sys/class/net, on a node"),
        Row("bandwidth_GBps", None, "per adapter, one direction"),
        Row("nics_per_node", None, "adapters of a node"),
        latency,
    ]


def _rate(port: Mapping[str, str]) -> float:
    match = re.match(r"([\d.]+) Gb/sec", port.get("rate", ""))
    return float(match[1]) if match else 0.0
