"""Where a study lies: opened, held against the inputs that it is of, and what can be wrong with it, in one sentence.

A study stores what it is of in its attributes: fingerprints of the inputs, and the values of the options, from which a
worker elsewhere makes the same request.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.errors import MissingPackageError, Refusal, UsageError, shown

if TYPE_CHECKING:
    import optuna

__all__ = ["StudyPlace", "check_inputs", "quiet"]

NAME = "planner"
"""Of the study in its storage, which holds one."""
INPUTS, OPTIONS = "planner:inputs", "planner:options"
"""Attributes of a study."""
HEARTBEAT_S, GRACE_S = 30, 90
"""How often a worker says that it lives, and after how long without that another takes over its trial [s]."""
WAIT_S = 10
"""For a storage that is locked or does not answer [s]."""
_BROKEN = (OSError, ValueError, RuntimeError, AttributeError, KeyError, AssertionError)
"""What Optuna raises of a torn journal, or of tables of another version."""
JOURNALS = (".log", ".journal")


class StudyPlace:
    """A storage, and the one study in it.

    Parameters
    ----------
    where : str
        URL of a database, a file whose name ends in .log or .journal, or another file, which becomes an SQLite
        database; empty: this process, for as long as it runs.
    option : str
        That named it.
    """

    def __init__(self, where: str = "", option: str = "--study") -> None:
        self.where, self.option = where, option

    def create(self, directions: int, inputs: Mapping[str, str], options: Mapping[str, Any]) -> optuna.Study:
        """Return the study, made where there is none, of these inputs; raise UsageError where it is of others.

        ``directions``: number of quantities that are minimised.
        """
        import optuna  # noqa: PLC0415 - heavy, and only this search needs it

        with quiet(), self._opened():
            study = optuna.create_study(
                storage=self._storage(),
                study_name=NAME,
                load_if_exists=True,
                directions=["minimize"] * directions,
                sampler=optuna.samplers.RandomSampler(),  # asked for nothing: trials come with their values
            )
            if INPUTS not in study.user_attrs:
                study.set_user_attr(OPTIONS, dict(options))
                study.set_user_attr(INPUTS, dict(inputs))
            of_study = study.user_attrs[INPUTS]
        check_inputs(self, of_study, inputs)
        return study

    def load(self) -> tuple[dict[str, str], dict[str, Any]]:
        """Return fingerprints of inputs and values of options of a study that exists.

        Raises
        ------
        UsageError
            There is none.
        """
        import optuna  # noqa: PLC0415 - heavy, and only this search needs it

        none = Refusal("storage", f"{self.option} must be a storage with a study", self.option, self.shown, self._make)
        if self._is_file and not Path(self.where).exists():
            raise UsageError(none)
        with quiet(), self._opened():
            try:
                study = optuna.load_study(study_name=NAME, storage=self._storage() or "")
            except KeyError:
                raise UsageError(none) from None
            attributes = study.user_attrs
        if INPUTS not in attributes:
            raise UsageError(none)
        return attributes[INPUTS], attributes[OPTIONS]

    @property
    def shown(self) -> str:
        """The place as a sentence repeats it, without a password."""
        return shown(re.sub(r"(://[^:/@]*):[^@]*@", r"\1:***@", self.where))

    @property
    def _is_file(self) -> bool:
        return "://" not in self.where

    def _storage(self) -> optuna.storages.BaseStorage | None:
        import optuna  # noqa: PLC0415 - heavy, and only this search needs it

        if not self.where:
            return None
        if self._is_file and self.where.endswith(JOURNALS):
            from optuna.storages.journal import JournalFileBackend  # noqa: PLC0415 - as above

            return optuna.storages.JournalStorage(JournalFileBackend(self.where))
        url = f"sqlite:///{Path(self.where).resolve()}" if self._is_file else _with_driver(self.where)
        wait = {"sqlite": "timeout", "postgresql": "connect_timeout"}.get(re.split(r"[:+]", url)[0])
        return optuna.storages.RDBStorage(
            url,
            engine_kwargs={"connect_args": {wait: WAIT_S}} if wait and wait not in url else {},
            heartbeat_interval=HEARTBEAT_S,
            grace_period=GRACE_S,
            heartbeat_stale_trial_callback=optuna.storages.RetryHeartbeatStaleTrialCallback(),
        )

    @contextmanager
    def _opened(self) -> Iterator[None]:
        """Let what cannot be opened be one sentence; in here nothing is priced."""
        try:
            with self.answering():
                yield
        except ImportError as error:
            sentence = f"{self.option} must be of a database whose driver is installed, got {self.shown} ({error.name})"
            raise MissingPackageError(
                f"{sentence}; pip install 'epoch-planner[postgres]' has that of PostgreSQL"
            ) from error
        except _BROKEN as error:
            raise self._down(error) from error

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Let a storage that goes away or stays locked be one sentence."""
        import optuna  # noqa: PLC0415 - heavy, and only this search needs it
        import sqlalchemy.exc  # noqa: PLC0415 - as above

        try:
            yield
        except (optuna.exceptions.StorageInternalError, sqlalchemy.exc.SQLAlchemyError) as error:
            raise self._down(error) from error

    @property
    def _make(self) -> str:
        return f"; `planner suggest --search optuna --study {self.shown}` makes one"

    def _down(self, error: Exception) -> UsageError:
        cause = error.__cause__ if str(error.__cause__ or "") else error
        why = re.sub(r"^\([\w.]+\) ", "", (str(cause).strip().splitlines() or [type(error).__name__])[0])
        rest = f" ({why}); start it, wait until nothing locks it, or name another place; nothing is searched elsewhere"
        return UsageError(
            Refusal("storage", f"{self.option} must be a storage that answers", self.option, self.shown, rest)
        )


def check_inputs(place: StudyPlace, of_study: Mapping[str, str], inputs: Mapping[str, str]) -> None:
    """Raise UsageError where a study is of other inputs: both fingerprints of all that differ."""
    differ = [name for name in inputs if of_study.get(name) != inputs[name]]
    if differ:
        mine, its = (", ".join(f"{name} {of.get(name, 'none')}" for name in differ) for of in (inputs, of_study))
        rest = f" with {its} instead of {mine}; name another place, or ask as the study was asked"
        rule = f"{place.option} must be a study of the same inputs"
        raise UsageError(Refusal("other_study", rule, place.option, place.shown, rest))


def _with_driver(url: str) -> str:
    """Return a URL of PostgreSQL with the driver that ``[postgres]`` installs, whatever SQLAlchemy takes by itself."""
    return re.sub(r"^postgres(ql)?://", "postgresql+psycopg://", url)


@contextmanager
def quiet() -> Iterator[None]:
    """Let Optuna write nothing but errors, and say nothing of what is experimental in it."""
    import optuna  # noqa: PLC0415 - heavy, and only this search needs it

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(before)
