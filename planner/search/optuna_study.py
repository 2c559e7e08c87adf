"""The study that workers share: where it lies, whose it is, which trials were claimed, and what is wrong with it.

A file is Optuna's journal, one record a line; a URL is a database of Optuna. A trial is added as running, with all its
values and the time: that is the claim of its plan, and of two claims of one plan the first counts, as trials are
numbered one after another. What a storage says is checked as a file is: it may be another program's, or torn.

Every process has a sampler of its own, which learns from the candidate that was tried in place of its proposal. Every
second proposal is one of the best candidates with other values of one to three axes: TPE, which learns each axis by
itself, rarely leaves a precision, or follows the edge of what a window accepts.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import time
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np

from planner import __version__
from planner.domain.request import Problem, SpaceRequest
from planner.errors import InputFileError, MissingPackageError, PlannerError, Refusal, UsageError, printable, shown

if TYPE_CHECKING:
    import optuna

__all__ = ["AxisValues", "Sampler", "SharedStudy", "StudyPlace", "Values", "fingerprints", "quiet"]

NAME = "planner"
"""Of a study in its storage, before the fingerprint of its inputs."""
REQUEST, CLAIM = "planner:request", "planner:claim"
"""Attributes: of a study its inputs and options, of a trial who claimed it and when [s since 1970]."""
GRACE_S = 60
"""After which a claim without a result is one of a worker that died [s]; a plan is priced in milliseconds."""
_START = b'{"op_code":'
"""Of every record of a journal."""
WAIT_S = 10
"""For a server that does not answer [s]."""
STARTS = 5
"""Attempts to open a database, whose tables another process may be making at this moment."""
_BROKEN = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What Optuna raises of records, tables or values that it did not write."""

Values = Mapping[str, int | str]
"""Axis -> whole number or word."""
AxisValues = tuple[str, ...] | tuple[int, int]
"""Words of an axis, or the least and the largest of its whole numbers."""
LEARNT_FROM = 20
"""Trials at random before the first that is learnt from."""
BEST = 5
"""Candidates beside which others are proposed."""
MOST_CHANGED = 3


class StudyPlace:
    """A storage, and the study in it.

    Parameters
    ----------
    where : a file, or the URL of a database server; empty: this process, for as long as it runs
    option : that named it
    """

    def __init__(self, where: str = "", option: str = "--study") -> None:
        self.where, self.option = where, option

    def open(self, quantities: int, inputs: Mapping[str, str], options: Mapping[str, Any]) -> SharedStudy:
        """Return the study of these inputs, made where the storage has none.

        InputFileError: the storage holds another study, or something else. UsageError: it does not answer.
        """
        import optuna  # noqa: PLC0415 - heavy, and only this search needs it

        with quiet(), self.answering():
            storage, name = self._storage(), f"{NAME} {hashed(inputs)}"
            names = self._names(storage)
            if names and name not in names:
                self.check_inputs(self._request(storage, names[0])[0], inputs)
            study = optuna.create_study(
                storage=storage,
                study_name=name,
                load_if_exists=True,
                directions=["minimize"] * quantities,
                sampler=optuna.samplers.RandomSampler(),  # asked for nothing: trials come with their values
            )
            if REQUEST not in study.user_attrs:
                study.set_user_attr(REQUEST, {"inputs": dict(inputs), "options": dict(options)})
            self.check_inputs(self._request(storage, name)[0], inputs)
        return SharedStudy(self, study)

    def load(self) -> tuple[Mapping[str, str], Mapping[str, Any]]:
        """Return the inputs and options of a study that exists; UsageError: there is none."""
        if self._is_file and not Path(self.where).exists():
            raise self._missing
        with quiet(), self.answering():
            storage = self._storage()
            names = self._names(storage)
            if not names:
                raise self._missing
            return self._request(storage, names[0])

    def check_inputs(self, of_study: Mapping[str, str], inputs: Mapping[str, str]) -> None:
        """Raise InputFileError where a study is of other inputs: both fingerprints of all that differ."""
        if differ := [name for name in inputs if of_study.get(name) != inputs[name]]:
            mine, its = (", ".join(f"{name} {of.get(name, 'none')}" for name in differ) for of in (inputs, of_study))
            rest = f" with {its} instead of {mine}; name another place, or ask as the study was asked"
            rule = f"{self.option} must be a study of the same inputs"
            raise InputFileError(self.hidden, Refusal("other_study", rule, self.option, self.shown, rest))

    @property
    def hidden(self) -> str:
        """The place without a password."""
        return re.sub(r"(://[^:/@]*):[^@]*@", r"\1:***@", self.where)

    @property
    def shown(self) -> str:
        """The place as a sentence repeats it."""
        return shown(self.hidden)

    @property
    def _is_file(self) -> bool:
        return "://" not in self.where

    @property
    def _missing(self) -> UsageError:
        rule, make = (
            f"{self.option} must be a storage with a study",
            f"planner suggest --search optuna --study {self.shown}",
        )
        return UsageError(Refusal("storage", rule, self.option, self.shown, f"; `{make}` makes one"))

    def wrong(self, rule: str, got: object, where: str = "") -> InputFileError:
        """Return the error of a study whose content is against a rule."""
        rest = f"; {self.option} names another file or database to start anew"
        return InputFileError(self.hidden, Refusal("study", rule, where, printable(shown(got)), rest), where)

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Let a storage that does not answer, or holds something else than trials, be one sentence; price nothing."""
        import optuna  # noqa: PLC0415 - heavy, and only this search needs it
        import sqlalchemy.exc  # noqa: PLC0415 - as above

        try:
            yield
        except PlannerError:
            raise
        except ImportError as error:
            sentence = f"{self.option} must be of a database whose driver is installed, got {self.shown} ({error.name})"
            remedy = "pip install 'epoch-planner[postgres]' has that of PostgreSQL"
            raise MissingPackageError(f"{sentence}; {remedy}") from error
        except (OSError, optuna.exceptions.StorageInternalError, sqlalchemy.exc.SQLAlchemyError) as error:
            rule = "a file that can be read and written" if self._is_file else "a storage that answers"
            rest = f" ({_cause(error)}); name another place, or wait until it is there; nothing is searched elsewhere"
            refusal = Refusal("storage", f"{self.option} must be {rule}", self.option, self.shown, rest)
            raise UsageError(refusal) from error
        except _BROKEN as error:
            raise self.wrong("the study must be as planner writes it", _cause(error)) from error

    def _names(self, storage: optuna.storages.BaseStorage) -> list[str]:
        """Return the names of the studies in a storage: one, but two if different ones were made at the same time."""
        names = [one.study_name for one in storage.get_all_studies()]
        for name in names:
            if not name.startswith(f"{NAME} "):
                raise self.wrong("the study must be one of planner", name)
        return names

    def _request(self, storage: optuna.storages.BaseStorage, name: str) -> tuple[Mapping[str, str], Mapping[str, Any]]:
        """Return the inputs and options of a study."""
        import optuna  # noqa: PLC0415 - heavy, and only this search needs it

        request = optuna.load_study(study_name=name, storage=storage).user_attrs.get(REQUEST)
        if request is None:  # it is being made
            raise self._missing
        inputs, options = (request.get("inputs"), request.get("options")) if isinstance(request, dict) else (None, None)
        if not isinstance(inputs, dict) or not isinstance(options, dict):
            raise self.wrong(f"attribute {REQUEST} must have inputs and options", request)
        return inputs, options

    def _storage(self) -> optuna.storages.BaseStorage:
        import optuna  # noqa: PLC0415 - heavy, and only this search needs it
        import sqlalchemy.exc  # noqa: PLC0415 - as above

        if not self.where:
            return optuna.storages.InMemoryStorage()
        if self._is_file:
            return optuna.storages.JournalStorage(cast("Any", _Journal(self)))
        url = re.sub(r"^postgres(ql)?://", "postgresql+psycopg://", self.where)  # the driver that [postgres] installs
        kind = re.split(r"[:+]", url)[0]
        if kind == "sqlite":
            rule = f"{self.option} must be a file, or the URL of a database server"
            raise UsageError(Refusal("storage", rule, self.option, self.shown, "; write the path alone"))
        wait = {"connect_timeout": WAIT_S} if kind == "postgresql" and "connect_timeout" not in url else {}
        attempts = 1
        while True:
            try:
                return optuna.storages.RDBStorage(url, engine_kwargs={"connect_args": wait})
            except (sqlalchemy.exc.IntegrityError, sqlalchemy.exc.ProgrammingError):
                if attempts == STARTS:
                    raise
            attempts += 1
            time.sleep(0.2)


class SharedStudy:
    """A study whose plans are claimed before they are priced."""

    def __init__(self, place: StudyPlace, study: optuna.Study) -> None:
        self.place, self._study = place, study

    def trials(self) -> list[optuna.trial.FrozenTrial]:
        """Return all trials, in order; the claims of workers that died have failed."""
        with self.place.answering():
            trials = self._study.get_trials(deepcopy=False)
        running = [one for one in trials if not one.state.is_finished()]
        dead = [one for one in running if not abs(time.time() - _claim_of(one)[1]) < GRACE_S]
        for one in dead:
            self.tell(one.number, None, is_failed=True)
        return self.trials() if dead else trials

    def claim(
        self, values: Mapping[str, Any], distributions: Mapping[str, optuna.distributions.BaseDistribution]
    ) -> int | None:
        """Return the number of a new trial of a plan; None: another worker has claimed or tried it."""
        from optuna.trial import TrialState, create_trial  # noqa: PLC0415 - heavy, and only this search needs it

        own = uuid.uuid4().hex
        trial = create_trial(
            state=TrialState.RUNNING,
            params=dict(values),
            distributions=dict(distributions),
            user_attrs={CLAIM: [own, time.time()]},
        )
        with self.place.answering():
            self._study.add_trial(trial)
        alike = [one for one in self.trials() if one.params == values and one.state != TrialState.FAIL]
        mine = [one.number for one in alike if _claim_of(one)[0] == own]
        if mine == [one.number for one in alike[:1]]:
            return mine[0]
        for number in mine:
            self.tell(number, None, is_failed=True)
        return None

    def tell(self, number: int, quantities: Sequence[float] | None, *, is_failed: bool = False) -> None:
        """End a trial with what is minimised; None: its plan does not satisfy the request, or was not tried."""
        from optuna.trial import TrialState  # noqa: PLC0415 - heavy, and only this search needs it

        state = TrialState.FAIL if is_failed else TrialState.PRUNED if quantities is None else TrialState.COMPLETE
        with self.place.answering(), suppress(RuntimeError):  # another worker ended it, as it took this one for dead
            self._study.tell(number, quantities, state, skip_if_finished=True)


def _claim_of(trial: optuna.trial.FrozenTrial) -> tuple[str, float]:
    """Return who claimed the plan of a trial, and when; of one that planner did not make nobody, long ago."""
    match trial.user_attrs.get(CLAIM):
        case [str(owner), float(since)]:
            return owner, since
    return "", 0.0


def _cause(error: Exception) -> str:
    """Return the first line of what is behind an error."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    cause = error.__cause__ if str(error.__cause__ or "") else error
    line = (str(cause).strip().splitlines() or [""])[0]
    return printable(re.sub(r"^\([\w.]+\) ", "", line) or type(error).__name__)


class _Journal:
    """The file of a study as a backend of Optuna's journal: whole lines are records, a torn last one is none.

    Writers take turns by a lock on the file itself, which goes with its process. What a killed one, or a full disk,
    left of a record is cut before the next is written. Systems without ``flock`` lock nothing.
    """

    def __init__(self, place: StudyPlace) -> None:
        self._place, self._path = place, Path(place.where)
        self._lines = self._bytes = 0
        with self._opened() as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(None, "it is no regular file")

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:  # noqa: ARG002 - it goes on where it was
        """Yield the records that were not read."""
        with self._path.open("rb") as file:
            file.seek(self._bytes)
            *lines, torn = file.read().split(b"\n")
        for line in lines:
            try:
                record = json.loads(line)
            except ValueError:
                record = None
            if not isinstance(record, dict):
                raise self._not_a_record(line)
            self._lines, self._bytes = self._lines + 1, self._bytes + len(line) + 1
            yield record
        if not torn.startswith(_START[: len(torn)]):  # some other file: nothing of it may be cut
            raise self._not_a_record(torn)

    def append_logs(self, logs: Sequence[Mapping[str, Any]]) -> None:
        """Write records behind the last whole one: all of them, or nothing."""
        text = b"".join(json.dumps(log, separators=(",", ":")).encode() + b"\n" for log in logs)
        with self._opened() as file:
            with suppress(ImportError):
                import fcntl  # noqa: PLC0415 - not on every system

                fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(self._bytes)
            end = self._bytes + file.read().rfind(b"\n") + 1
            try:
                file.truncate(end)
                file.seek(end)
                while text:
                    text = text[file.write(text) :]
                os.fsync(file.fileno())
            except BaseException:
                file.truncate(end)
                raise

    def _opened(self) -> BinaryIO:
        flags = os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC
        with suppress(FileExistsError):  # made at the path itself: never where a link leads that has no file
            os.close(os.open(self._path, flags | os.O_CREAT | os.O_EXCL, 0o666))
        number = os.open(self._path, flags)
        return cast("BinaryIO", os.fdopen(number, "r+b", buffering=0))

    def _not_a_record(self, line: bytes) -> InputFileError:
        text = line.decode(errors="replace")
        return self._place.wrong("the study must be a journal of Optuna", text, f"line {self._lines + 1}")


class Sampler:
    """Proposals for axes.

    Parameters
    ----------
    axes : mapping of axis to AxisValues
    quantities : how many are minimised
    """

    def __init__(self, axes: Mapping[str, AxisValues], seed: int | Sequence[int], quantities: int = 1) -> None:
        import optuna  # noqa: PLC0415 - heavy, and few requests need it

        self.axes = axes
        self.distributions: dict[str, optuna.distributions.BaseDistribution] = {
            name: optuna.distributions.CategoricalDistribution(values)
            if isinstance(values[0], str)
            else optuna.distributions.IntDistribution(int(values[0]), int(values[1]), log=int(values[0]) > 0)
            for name, values in axes.items()
        }
        self._random = np.random.default_rng(seed)
        sampler = optuna.samplers.TPESampler(
            seed=int(self._random.integers(2**32)), n_startup_trials=LEARNT_FROM, multivariate=True
        )
        self._study = optuna.create_study(directions=["minimize"] * quantities, sampler=sampler)
        self._best: list[tuple[float, int, Values]] = []
        self._told = 0

    def ask(self) -> Values:
        """Return a proposal, which need not be lawful."""
        from optuna.trial import TrialState  # noqa: PLC0415 - heavy, and few requests need it

        if self._best and self._told >= LEARNT_FROM and self._told % 2:
            values = dict(self._best[self._random.integers(len(self._best))][-1])
            some = self._random.permutation(list(self.axes))[: self._random.integers(1, MOST_CHANGED + 1)].tolist()
            return values | {name: self._other(self.axes[name], values[name]) for name in some}
        asked = self._study.ask(self.distributions)
        self._study.tell(asked, state=TrialState.FAIL)  # the candidate that is tried is what it learns from
        return asked.params

    def tell(self, values: Values, quantities: Sequence[float] | None) -> None:
        """Learn what a candidate has, of each quantity; None: it has no price."""
        from optuna.trial import TrialState, create_trial  # noqa: PLC0415 - heavy, and few requests need it

        state = TrialState.PRUNED if quantities is None else TrialState.COMPLETE
        trial = create_trial(state=state, values=quantities, params=dict(values), distributions=self.distributions)
        self._study.add_trial(trial)
        if quantities is not None and len(quantities) == 1:
            self._best = sorted([*self._best, (quantities[0], self._told, values)])[:BEST]
        self._told += 1

    def _other(self, of: AxisValues, now: int | str) -> int | str:
        """Return another value of an axis: any word, or a number some powers of two away."""
        if isinstance(now, str):
            return str(self._random.choice([word for word in of if word != now]))
        scaled = round(now * 2.0 ** self._random.normal())
        other = scaled if scaled != now else now + int(self._random.choice((-1, 1)))
        return min(max(other, int(of[0])), int(of[1]))


@contextmanager
def quiet() -> Iterator[None]:
    """Let Optuna write nothing but errors, and say nothing of what is experimental in it."""
    import optuna  # noqa: PLC0415 - heavy, and few requests need it

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(before)


DIGITS = 12
"""Hexadecimal, of a fingerprint: enough to tell studies apart, few enough to read."""


def fingerprints(problem: Problem, request: SpaceRequest) -> dict[str, str]:
    """Return what prices and lawfulness of plans depend on: the version in words, fingerprints of all else.

    How many plans are reported, and which of the tied ones is taken, is no part of it, nor is a run without a deadline.
    """
    plain = SpaceRequest(request.target_batch)
    run = plain.run if request.deadline_s is None else request.run
    settings = (problem.dataset, problem.settings, problem.scenario, problem.explicit_calibration)
    return {
        "planner": __version__,
        "network": hashed(problem.network),
        "cluster": hashed(problem.cluster),
        "calibrations": hashed(problem.calibrations),
        "settings": hashed(settings),
        "request": hashed(replace(request, run=run, top=plain.top, choose=plain.choose, sensitivity=plain.sensitivity)),
    }


def hashed(value: object) -> str:
    """Return the fingerprint of a value: records, mappings, sequences, sets, arrays, numbers, text."""
    digest = hashlib.sha256()
    for piece in _pieces(value):
        digest.update(piece)
    return digest.hexdigest()[:DIGITS]


def _pieces(value: Any) -> Iterator[bytes]:
    """Yield what tells a value apart; every part ends in a byte that no text holds."""
    if is_dataclass(value) and not isinstance(value, type):
        yield f"{type(value).__name__}(".encode()
        for field in fields(value):
            yield from _pieces((field.name, getattr(value, field.name)))
    elif isinstance(value, Mapping):
        yield b"{"
        for key in sorted(value, key=repr):
            yield from _pieces((key, value[key]))
    elif isinstance(value, tuple | list):
        yield b"["
        for one in value:
            yield from _pieces(one)
    elif isinstance(value, np.ndarray):
        yield f"{value.dtype}{value.shape}".encode() + value.tobytes()
    elif isinstance(value, set | frozenset):
        yield ",".join(sorted(map(hashed, value))).encode()
    else:
        yield f"{value.__module__}.{value.__qualname__}".encode() if callable(value) else repr(value).encode()
    yield b"\xff"
