"""Another imputer than a flow learns, and is measured as a flow is."""

from __future__ import annotations

import time

from viscos import runs
from viscos.commands.assemble.fitting import Fitting
from viscos.commands.assemble.measuring import Measured
from viscos.commands.interrupt import SAVED_EVERY, held
from viscos.core.progress import patient_bar
from viscos.evaluate import about
from viscos.imputers import kinds_of
from viscos.report.board import Log
from viscos.runs import checkpoint


def learn(job: Fitting, log: Log) -> float:
    """Trains to the end, saving as it goes; returns the seconds that it has taken, in all processes.

    Ctrl-C and SIGTERM end it after the present step, which is saved; or at once, while no step has been reported, as an
    imputer of scikit-learn never reports one.
    """
    if job.finished:
        return job.begun.spent
    began = time.monotonic() - job.begun.spent
    saved, keeps = time.monotonic(), False

    def at_once(number: int) -> None:
        if not keeps:
            raise KeyboardInterrupt

    def save(*, finished: bool) -> None:
        nonlocal saved
        checkpoint.save(job.run_dir / runs.CHECKPOINT, job.state(finished, time.monotonic() - began))
        saved = time.monotonic()

    with held(at_once) as interrupted, patient_bar(f"fitting {job.imputer.label}") as shown:

        def after(done: int, total: int, scalars: dict[str, float]) -> None:
            nonlocal keeps
            keeps = True
            shown(done, total, scalars)
            if done % job.log_every == 0:
                log.scalars("train", scalars, done)
            if interrupted() or time.monotonic() - saved > SAVED_EVERY:
                save(finished=False)
            if interrupted():
                raise KeyboardInterrupt

        job.imputer.fit(job.data, job.seed, after)
        keeps = True
        job.imputer.fit_seconds = time.monotonic() - began
        save(finished=True)
        if interrupted():
            raise KeyboardInterrupt
    return job.imputer.fit_seconds


def measure(job: Fitting) -> Measured:
    """Measures what was trained on the test split, if anything is hidden there."""
    if bool(job.observed.all()):
        # The record has no numbers, but may lie in the folder of a table, which must know of what it is.
        labels = {kind.key: kind.label for kind in kinds_of(job.imputer)}
        return Measured({"imputer": job.imputer.name, **about(job.test, job.observed), "labels": labels})
    return job.measuring.run(job.imputer, job.test, job.observed, job.parts)
