"""Different requests of a scheduler, answered in one process as ``planner batch`` does.

    python -m benchmarks.stream 1000                      # the requests, one a line, for planner batch
    python -m benchmarks.stream 1000 --time               # processor time of each: median, mean and the slowest kinds
    python -m benchmarks.stream 1000 --time --keep FILE   # and the answers, to compare those of two trees

Every request has a network, a cluster and a target of its own; half of them name precisions, nodes, a framework or a
tolerance besides. A seed gives the same requests everywhere.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

__all__ = ["main", "requests"]

IMAGES = ("resnet50", "vgg16", "inception-v3", "alexnet")
TEXTS = ("bert-large", "gpt2", "llama-7b", "gpt2-xl")
CLUSTERS = {"dgx-a100": 8, "dgx1-v100": 64, "dgx-h100": 8, "tsubame-kfc": 42, "jean-zay-v100-32gb": 64, "fms-a100": 16}
"""Nodes of each."""
PRECISIONS = ("fp32", "fp16", "bf16", "fp16,fp32")
FRAMEWORKS = {IMAGES: ("pytorch", "tensorflow", "mxnet"), TEXTS: ("pytorch", "megatron-lm", "deepspeed", "fsdp")}
SLOWEST = 8


def requests(number: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Yield so many requests, no two alike."""
    made, seen = random.Random(seed), set[str]()  # noqa: S311 - nothing secret
    while len(seen) < number:
        family = made.choice((IMAGES, TEXTS))
        cluster = made.choice(tuple(CLUSTERS))
        request: dict[str, Any] = {
            "network": made.choice(family),
            "cluster": cluster,
            "target_batch": 2 ** made.randint(6, 13) if made.random() < 0.7 else 8 * made.randint(8, 1024),
        }
        if made.random() < 0.2:
            request["precision"] = made.choice(PRECISIONS)
        if made.random() < 0.2:
            request["nodes"] = f"1:{made.randint(1, CLUSTERS[cluster])}"
        if made.random() < 0.15:
            request["framework"] = made.choice(FRAMEWORKS[family])
        if made.random() < 0.15:
            request["tolerance"] = made.choice(("5%", "10%", "25%"))
        if (line := json.dumps(request)) not in seen:
            seen.add(line)
            yield request


def main(arguments: Sequence[str] | None = None) -> int:
    """Write requests, or answer and time them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stream", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("number", type=int, help="requests")
    parser.add_argument("--seed", type=int, default=0, help="of the requests (default: 0)")
    parser.add_argument("--time", action="store_true", help="answer them here, and say how long each takes")
    parser.add_argument("--keep", type=Path, help="file that the answers are written to")
    options = parser.parse_args(arguments)
    made = list(requests(options.number, options.seed))
    if not options.time:
        sys.stdout.writelines(json.dumps(one) + "\n" for one in made)
        return 0
    seconds, answers = answered(made)
    if options.keep:
        options.keep.write_text("".join(answers))
    sys.stdout.write("\n".join(lines_of(made, seconds)) + "\n")
    return 0


def answered(made: Sequence[Mapping[str, Any]]) -> tuple[list[float], list[str]]:
    """Answer requests; return the processor time of each [s], and its document or error, one a line."""
    from planner.cli import batch  # noqa: PLC0415 - requests can be written without
    from planner.errors import PlannerError  # noqa: PLC0415 - likewise
    from planner.formats.documents import json_line  # noqa: PLC0415 - likewise
    from planner.search.searchable import KEPT  # noqa: PLC0415 - likewise

    seconds, answers, noted = [], [], set[str]()
    token = KEPT.set({})
    for request in made:
        start = time.process_time()
        try:
            line = json_line(batch.answered("suggest", request, noted)[0])
        except PlannerError as error:
            line = f"{error}\n"
        seconds.append(time.process_time() - start)
        answers.append(line)
    KEPT.reset(token)
    return seconds, answers


def lines_of(made: Sequence[Mapping[str, Any]], seconds: Sequence[float]) -> Iterator[str]:
    """Yield what requests took, and the kinds whose mean is longest."""
    kinds: dict[str, list[float]] = defaultdict(list)
    for request, one in zip(made, seconds, strict=True):
        kinds[f"{request['network']} on {request['cluster']}"].append(one)
        kinds[f"--framework {request.get('framework', 'left out')}"].append(one)
    total, middle, mean = sum(seconds), median(seconds), fmean(seconds)
    yield f"{len(seconds)} requests in {total:.1f} s: median {middle:.3f} s, mean {mean:.3f} s"
    for kind, some in sorted(kinds.items(), key=lambda one: -fmean(one[1]))[:SLOWEST]:
        yield f"{kind}: {len(some)} requests, mean {fmean(some):.3f} s, longest {max(some):.3f} s"


if __name__ == "__main__":
    sys.exit(main())
