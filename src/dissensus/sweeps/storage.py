"""A search in optuna's storage, for other programs to see while it goes on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

__all__ = ["SharedStudy"]


class SharedStudy:
    """A study that follows a search: trials are there once proposed, with their value once done.

    ``storage`` is a file (optuna's journal, which several machines may share), or the URL of a
    data base, ``sqlite:///search.db``, ``postgresql://…``. Nothing is read back but to see how far
    it is: what a search proposes follows from its seed and its records, wherever it is kept. Two
    programs must take turns.
    """

    def __init__(self, storage: str, name: str) -> None:
        import optuna

        self.storage, self.name = storage, name
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        try:
            self.study = optuna.create_study(
                study_name=name, storage=_opened(storage), load_if_exists=True
            )
        except Exception as error:  # each data base has errors of its own
            words = str(error).partition("\n")[0]
            raise ValueError(f"--storage {storage} cannot be used: {words}") from error

    def asked(
        self,
        number: int,
        params: Mapping[str, Any],
        distributions: Mapping[str, Any],
        choice: Mapping[str, Any],
    ) -> None:
        """Trial ``number`` is under way."""
        import optuna

        there = self.study.get_trials(deepcopy=False)
        if number < len(there):
            if there[number].params != params:
                raise ValueError(
                    f"{self.storage} holds another search named {self.name}: its trial {number} "
                    "is not this one's; choose another --storage"
                )
            return
        trial = optuna.trial.create_trial(
            state=optuna.trial.TrialState.RUNNING,
            params=dict(params),
            distributions=dict(distributions),
            user_attrs={"choice": dict(choice)},
        )
        self.study.add_trial(trial)

    def told(self, number: int, value: float) -> None:
        """Trial ``number`` has ended; a value that is not finite is a failure."""
        import optuna

        if math.isfinite(value):
            self.study.tell(number, value, skip_if_finished=True)
        else:
            failed = optuna.trial.TrialState.FAIL
            self.study.tell(number, state=failed, skip_if_finished=True)


def _opened(storage: str) -> Any:
    """A URL as it is; a file as a journal."""
    if "://" in storage:
        return storage
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    return JournalStorage(JournalFileBackend(storage))
