"""Work spread over forked processes: each shares the parent's memory, and none survives the call that started it.

Every worker has a pipe of its own and no lock is shared, so that a worker that is killed, or kills, blocks nobody;
``multiprocessing.Pool`` shares the locks of two queues, and one lost process can leave the others waiting for ever.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Collection
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import TypeVar, cast

__all__ = ["spread"]

R = TypeVar("R")
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def spread(job: Callable[[int], R], jobs: int, processes: int, started: Callable[[int], object]) -> list[R]:
    """Return ``job(0), job(1), ...`` in this order, computed by up to so many processes.

    One process, or a system without fork, computes them here. Results and exceptions travel by pickle.

    Parameters
    ----------
    job : callable
        Of a number; it need not be picklable, as workers are forked.
    jobs : int
    processes : int
    started : callable
        Told of every job when it starts, in order, in this process.

    Raises
    ------
    ChildProcessError
        A worker died without an answer, such as for want of memory.
    """
    if min(jobs, processes) <= 1 or "fork" not in multiprocessing.get_all_start_methods():
        return [(started(number), job(number))[1] for number in range(jobs)]
    workers: dict[Connection, multiprocessing.process.BaseProcess] = {}
    try:
        for _ in range(min(jobs, processes)):
            _start(job, workers)
        return _collected(workers, jobs, started)
    finally:
        for pipe, worker in workers.items():
            worker.kill()  # all are idle unless an exception, such as an interrupt, is on its way
            worker.join()
            pipe.close()


def _start(job: Callable[[int], R], workers: dict[Connection, multiprocessing.process.BaseProcess]) -> None:
    """Add a worker; signals wait until the parent knows of it and the worker has handlers of its own."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        ours, theirs = multiprocessing.Pipe()
        worker = multiprocessing.get_context("fork").Process(
            target=_work, args=(job, theirs, [*workers, ours], before), daemon=True
        )
        worker.start()
        workers[ours] = worker
        theirs.close()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(job: Callable[[int], R], pipe: Connection, of_parent: Collection[Connection], mask: set[int]) -> None:
    """Answer job numbers until the parent closes its end, or ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which ends its workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    for one in of_parent:
        one.close()
    with suppress(EOFError, OSError):
        while True:
            number = pipe.recv()
            try:
                pipe.send((number, job(number), None))
            except Exception as error:  # noqa: BLE001 - raised again by the parent
                pipe.send((number, None, error))


def _collected(workers: Collection[Connection], jobs: int, started: Callable[[int], object]) -> list[R]:
    """Return the answers by number: every worker gets the next job when it has answered the last."""
    answers: dict[int, R] = {}
    waiting = iter(range(jobs))

    def give(pipe: Connection) -> None:
        if (number := next(waiting, None)) is not None:
            started(number)
            pipe.send(number)

    for pipe in workers:
        give(pipe)
    while len(answers) < jobs:
        for pipe in cast("list[Connection]", wait(list(workers))):
            try:
                number, answer, error = pipe.recv()
            except (EOFError, OSError):
                raise ChildProcessError("a worker process ended without an answer") from None
            if error is not None:
                raise error
            answers[number] = answer
            give(pipe)
    return [answers[number] for number in range(jobs)]
