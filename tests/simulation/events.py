"""Event count of a pipeline: every operation of every stage, one after the other, as soon as its input has arrived.

=========  ======================================================================================================
p, m, v    stages, micro-batches of a step, chunks (virtual stages) of each stage
N          micro-batches that pass one chunk before the next chunk takes its turn (interleaved)
F, B, W    forward of a chunk, its backward, and the gradients of its weights where these are a time of their own
=========  ======================================================================================================

Chunk c of stage s is the part c p + s of v p parts of the network, in a V the part s or 2 p - 1 - s: its input comes
from the part before, its output gradient from the part behind. A stage runs one operation at a time, in the order that
its schedule lays down; sending takes time but no stage's time.

Orders: GPipe (Huang et al. 2019); 1F1B (Narayanan et al. 2019); interleaved 1F1B as Megatron-LM runs it (Narayanan et
al. 2021): 2 (p - s - 1) + (v - 1) N forwards of chunks, then a forward and a backward in turn; ZB-H1 (Qi et al. 2023):
1F1B, with weight gradients s micro-batches behind their backward; ZB-H2: 2 (p - s - 1) forwards ahead, and weight
gradients 2 s behind; ZB-V as torch.distributed.pipelining runs it (ScheduleZBVZeroBubble).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import numpy as np

from planner.domain.arrays import FloatArray, check_count
from planner.errors import ParameterError

__all__ = ["Events", "Operation", "count_events", "operations"]

Kind = Literal["F", "B", "W"]
_KINDS: tuple[Kind, ...] = ("F", "B", "W")


class Operation(NamedTuple):
    """What a stage does at a time: ``kind`` of one of its chunks for one micro-batch."""

    kind: Kind
    chunk: int
    micro_batch: int


Order = tuple[Operation, ...]


def operations(
    schedule: str, stages: int, micro_batches: int, virtual_stages: int = 1, group: int | None = None
) -> tuple[Order, ...]:
    """Return what every stage does, in order.

    Parameters
    ----------
    schedule : {"gpipe", "1f1b", "interleaved", "zero-bubble", "zero-bubble-h2", "zero-bubble-v"}
    stages, micro_batches, virtual_stages : int
        p, m, v; v is above 1 for "interleaved", and 2 for "zero-bubble-v", alone.
    group : int, optional
        N, of "interleaved"; p where it is not given.

    Raises
    ------
    ParameterError
        For an unknown schedule, or counts that it cannot run: it would wait for itself.
    """
    for what, value in (("stages", stages), ("micro-batches", micro_batches), ("virtual stages", virtual_stages)):
        check_count(what, value)
    if schedule == "interleaved":
        return _interleaved(stages, micro_batches, virtual_stages, stages if group is None else group)
    if schedule not in _BY_STAGE:
        raise ParameterError("schedule of a pipeline", f"one of {', '.join((*_BY_STAGE, 'interleaved'))}", schedule)
    order, chunks = _BY_STAGE[schedule]
    if virtual_stages != chunks:
        raise ParameterError(f"virtual stages of schedule {schedule}", str(chunks), virtual_stages)
    return tuple(order(stages, micro_batches, stage) for stage in range(stages))


def _gpipe(stages: int, micro_batches: int, stage: int) -> Order:
    del stages, stage
    return tuple(Operation(kind, 0, one) for kind in ("F", "B") for one in range(micro_batches))


def _one_forward_one_backward(stages: int, micro_batches: int, stage: int) -> Order:
    forwards, backwards = ([Operation(kind, 0, one) for one in range(micro_batches)] for kind in ("F", "B"))
    return _alternating(forwards, backwards, stages - stage - 1)


def _zero_bubble(stages: int, micro_batches: int, stage: int, *, depth: int = 1) -> Order:
    """Return ZB-H1, or with ``depth`` 2 ZB-H2."""
    forwards, backwards = ([Operation(kind, 0, one) for one in range(micro_batches)] for kind in ("F", "B"))
    order: list[Operation] = []
    for one in _alternating(forwards, backwards, depth * (stages - stage - 1)):
        order.append(one)
        if one.kind == "B" and one.micro_batch >= depth * stage:
            order.append(Operation("W", 0, one.micro_batch - depth * stage))
    rest = range(max(0, micro_batches - depth * stage), micro_batches)
    return (*order, *(Operation("W", 0, one) for one in rest))


def _v_shaped(stages: int, micro_batches: int, stage: int) -> Order:
    """Return ZB-V: of fewer than 2 p - 1 micro-batches the order of so many, without those that there are not."""
    below, number = stages - stage, max(2 * stages - 1, micro_batches)
    first, second = ([(kind, chunk) for kind in _KINDS] for chunk in range(2))
    back = (*first[1:], *second)
    order = (
        *first[:1] * (2 * below - 1), *(second[0], first[0]) * stage, *second * below,
        *(first[0], *back) * (number - 2 * stages + 1 + stage), *back * (below - 1),
        *(first[1], second[1]) * stage, *first[1:] * below, *second[2:] * stage, *first[2:] * stage,
    )  # fmt: skip
    count: Counter[tuple[Kind, int]] = Counter()
    numbered = []
    for kind, chunk in order:
        numbered.append(Operation(kind, chunk, count[kind, chunk]))
        count[kind, chunk] += 1
    return tuple(one for one in numbered if one.micro_batch < micro_batches)


_BY_STAGE: dict[str, tuple[Callable[[int, int, int], Order], int]] = {
    "gpipe": (_gpipe, 1),
    "1f1b": (_one_forward_one_backward, 1),
    "zero-bubble": (_zero_bubble, 1),
    "zero-bubble-h2": (partial(_zero_bubble, depth=2), 1),
    "zero-bubble-v": (_v_shaped, 2),
}
"""Schedule -> order of a stage, given p, m and s; and chunks of a stage."""


def _interleaved(stages: int, micro_batches: int, virtual_stages: int, group: int) -> tuple[Order, ...]:
    rest = micro_batches % group if group > 0 else 0
    if not stages <= group <= micro_batches or 0 < rest < stages:
        rule = f"from {stages} stages to the {micro_batches} micro-batches, the last group too"
        raise ParameterError("micro-batches of a group of the interleaved schedule", rule, group)
    forwards, backwards = [], []
    for first in range(0, micro_batches, group):
        together = range(first, min(first + group, micro_batches))
        for chunk in range(virtual_stages):
            forwards += [Operation("F", chunk, one) for one in together]
            backwards += [Operation("B", virtual_stages - 1 - chunk, one) for one in together]
    ahead = (virtual_stages - 1) * group
    return tuple(_alternating(forwards, backwards, 2 * (stages - stage - 1) + ahead) for stage in range(stages))


def _alternating(forwards: Sequence[Operation], backwards: Sequence[Operation], warm_up: int) -> Order:
    """Return ``warm_up`` forwards, then one forward and one backward in turn, then the backwards that are left."""
    ahead = min(warm_up, len(forwards))
    pairs = zip(forwards[ahead:], backwards, strict=False)
    in_pairs = len(forwards) - ahead
    return (*forwards[:ahead], *(one for pair in pairs for one in pair), *backwards[in_pairs:])


@dataclass(frozen=True, slots=True)
class Events:
    """What a step of a pipeline came to.

    Attributes
    ----------
    end_s : float
        End of the last operation of any stage, from the start of the first.
    last_backward_s : ndarray of float, shape (p, v)
        End of the last operation of each chunk.
    idle_s : ndarray of float, shape (p,)
        From start to end of the step, without operations.
    live : ndarray of int, shape (p,)
        Largest number of chunks' micro-batches of which forward has begun and backward has not ended.
    """

    end_s: float
    last_backward_s: FloatArray
    idle_s: FloatArray
    live: tuple[int, ...]


def count_events(
    orders: Sequence[Order],
    forward_s: FloatArray,
    backward_s: FloatArray,
    weight_s: FloatArray | None = None,
    transfer_s: float = 0.0,
    *,
    v_shaped: bool = False,
) -> Events:
    """Return when the operations of all stages are done, in O(operations).

    Parameters
    ----------
    orders : sequence of tuple of Operation, length p
        By :func:`operations`.
    forward_s, backward_s, weight_s : ndarray of float, shape (p, v)
        Of one micro-batch through one chunk; weight gradients are part of ``backward_s`` unless the order has them
        apart.
    transfer_s : float
        From the end of an operation to its output's arrival at another stage.
    v_shaped : bool
        Whether the second chunks of the stages follow each other from the last stage to the first.

    Raises
    ------
    ParameterError
        If a stage waits for what is behind it in its own order.
    """
    durations = {"F": forward_s, "B": backward_s, "W": backward_s if weight_s is None else weight_s}
    run = _Run(orders, durations, transfer_s, v_shaped=v_shaped)
    waiting = list(range(len(orders)))
    while waiting:
        stage = waiting.pop()
        waiting += run.advance(stage)
    if any(number < len(order) for number, order in zip(run.done, orders, strict=True)):
        raise ParameterError("orders of the stages", "free of circles of waiting", "operations that never start")
    return run.events()


class _Run:
    """State of a count: how far each stage is, and when."""

    def __init__(
        self, orders: Sequence[Order], durations: dict[str, FloatArray], transfer_s: float, *, v_shaped: bool
    ) -> None:
        self.orders, self.durations, self.transfer_s = orders, durations, transfer_s
        self.stages, self.chunks = durations["F"].shape
        stages = list(range(self.stages))
        self.stage_of = stages + stages[::-1] if v_shaped else stages * self.chunks
        self.done = [0] * self.stages
        self.free_s = [0.0] * self.stages
        self.end_s: dict[tuple[str, int, int], float] = {}
        self.last_s = np.zeros((self.stages, self.chunks))
        self.busy_s = np.zeros(self.stages)

    def advance(self, stage: int) -> list[int]:
        """Run what a stage can run now; return the neighbours that may go on."""
        order, start = self.orders[stage], self.done[stage]
        while self.done[stage] < len(order):
            kind, chunk, micro_batch = order[self.done[stage]]
            part = self.stage_of.index(stage, chunk * self.stages)
            arrival_s = self._arrival_s(kind, part, micro_batch)
            if arrival_s is None:
                break
            duration_s = float(self.durations[kind][stage, chunk])
            end_s = max(self.free_s[stage], arrival_s) + duration_s
            self.free_s[stage] = self.end_s[kind, part, micro_batch] = self.last_s[stage, chunk] = end_s
            self.busy_s[stage] += duration_s
            self.done[stage] += 1
        return [(stage + 1) % self.stages, (stage - 1) % self.stages] if self.done[stage] > start else []

    def _arrival_s(self, kind: str, part: int, micro_batch: int) -> float | None:
        """Return when the input of an operation is there; None: not known yet."""
        last = len(self.stage_of) - 1
        if kind == "F":
            before = ("F", part - 1) if part > 0 else None
        elif kind == "B":
            before = ("B", part + 1) if part < last else ("F", part)
        else:
            before = ("B", part)
        if before is None:
            return 0.0
        end_s = self.end_s.get((*before, micro_batch))
        if end_s is None:
            return None
        return end_s + (self.transfer_s if self.stage_of[before[1]] != self.stage_of[part] else 0.0)

    def events(self) -> Events:
        end_s = max(self.free_s)
        return Events(end_s, self.last_s, end_s - self.busy_s, tuple(map(_most_live, self.orders)))


def _most_live(order: Order) -> int:
    """Return the most forwards without their backward at any time, that of the last of them counted."""
    changes = [{"F": 1, "B": -1, "W": 0}[one.kind] for one in order]
    return int(np.cumsum(changes).max())
