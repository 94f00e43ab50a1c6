"""One batch of `viscos impute`: a posterior is fitted to it, if asked for, and draws are made and judged."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from viscos.commands.assemble.imputing import Imputing
from viscos.commands.completing.results import Results
from viscos.commands.completing.shards import Shards
from viscos.commands.completing.trust import drawn, weighed
from viscos.core.batch import Incomplete, incomplete
from viscos.core.progress import bar, say
from viscos.imputers import Imputer
from viscos.inference.conditional import Conditional
from viscos.inference.imputation import Completions
from viscos.inference.partition import refuse_singular
from viscos.linear.principal import longest
from viscos.posteriors import PerItem
from viscos.report.board import Log


@dataclass(frozen=True)
class Pass:
    """Items that are completed in batches, and those batches that are done."""

    job: Imputing
    shards: Shards
    name: str = "fit"
    """What curves of its fits are called."""
    refuses: bool = True
    """Whether holes that cannot be solved for are refused, and not just counted as failed."""

    @property
    def starts(self) -> range:
        """The first item of each batch."""
        return range(0, len(self.job.data), self.job.batch_size)


@dataclass(frozen=True)
class _Fit:
    """What was before a fit, and how long it took."""

    before: Completions
    first_bound: Tensor
    seconds: float


def complete(each: Pass, rows: Tensor, log: Log | None) -> Results:
    """The completions of the items `rows` (b,), one batch, with what is known of them."""
    job = each.job
    batch = incomplete(job.data.values[rows], job.items.observed[rows], rows).to(job.device)
    if job.imputer is not None:
        return _by_imputer(job.imputer, batch, job)
    conditional = _conditional(each, batch)
    fits = conditional.posterior is not job.choice.network
    fit = _fit(each, conditional, log) if fits else None
    began = time.monotonic()
    done = drawn(job, conditional)
    drew = _seconds(began, done)
    began = time.monotonic()
    diagnosis = weighed(job, conditional, done)
    judged = time.monotonic()
    affordable = fits or not conditional.flow.deep  # else each costs more than all draws together
    bound = condition = _unknown(batch)
    if affordable:
        condition = conditional.condition_number().cpu()
    if diagnosis is not None:
        bound = diagnosis.bound.cpu()
    elif affordable:
        bound = torch.as_tensor(conditional.bound(2)).cpu()
    return Results(
        draws=done,
        bound=bound,
        before=fit.before if fit else None,
        first_bound=fit.first_bound if fit else None,
        condition=condition,
        fit_seconds=fit.seconds if fit else 0.0,
        draw_seconds=drew,
        diagnosis=diagnosis,
        weigh_seconds=judged - began,
    )


def _by_imputer(imputer: Imputer, batch: Incomplete, job: Imputing) -> Results:
    """The completions of another imputer than a flow with its posterior: there is no bound, and nothing is fitted."""
    began = time.monotonic()
    done = imputer.impute(batch, job.draws, job.seed)
    return Results(draws=done, bound=_unknown(batch), condition=_unknown(batch), draw_seconds=_seconds(began, done))


def _unknown(batch: Incomplete) -> Tensor:
    return torch.full((len(batch),), float("nan"))


def _seconds(began: float, done: Completions) -> float:
    """Since `began`, until the device has made the draws."""
    done.solution.status.cpu()
    return time.monotonic() - began


def _conditional(each: Pass, batch: Incomplete) -> Conditional:
    """The batch with its posterior: the run's network, or one that is to be fitted, where it begins.

    Raises `InputError` where G^HH is singular, if that is refused.
    """
    job = each.job
    posterior, flow = job.posterior(batch.filled()), job.trained.model.flow
    fits = posterior is not job.choice.network
    taught = job.choice.taught_there(batch) if fits else None
    guess = job.choice.guess(batch, taught) if fits else None
    if job.partition == "maxvol":
        most = longest(batch.hidden.flatten(1))
        say(f"linearising the flow for {len(batch)} items, a product for each hidden entry, up to {most}")
    conditional = Conditional(flow, batch, posterior, job.objective, job.seed, job.partition, guess, job.noise)
    if (fits or not flow.deep) and each.refuses:
        refuse_singular(conditional.condition_number(), job.partition)
    if taught is not None:  # after the guess, which would move the mean to its own latent
        assert isinstance(posterior, PerItem)
        posterior.begin(taught)
    return conditional


def _fit(each: Pass, conditional: Conditional, log: Log | None) -> _Fit:
    """Fits the posterior, with a bar and curves."""
    job, steps, batch = each.job, each.job.choice.steps, conditional.batch
    start = Conditional(conditional.flow, batch, conditional.posterior, job.objective, job.seed, noise=job.noise)
    before, first_bound = start.completions(1, antithetic=True), torch.as_tensor(start.bound(2)).cpu()
    began, first, every = time.monotonic(), int(batch.index[0]), max(1, steps // 10)
    doing = "fitting" if each.refuses else "fitting again, to measure"
    with bar(f"{doing} from item {first}" if first else doing, steps) as progress:

        def after(step: int, scalars: dict[str, float]) -> None:
            if log is not None and (step % every == 0 or "bound" in scalars):
                log.scalars(f"{each.name}/from_{first}", scalars, step)
            progress.update(step + 1, {k: v for k, v in scalars.items() if k in ("bound", "residual", "failed")})

        with warnings.catch_warnings(record=True) as remarks:
            warnings.simplefilter("always", UserWarning)  # torch and others warn of what is no matter of a fit
            rate, samples, singular = job.learning_rate, job.samples, not each.refuses
            conditional.fit(steps, learning_rate=rate, samples=samples, progress=after, singular=singular)
    for remark in remarks:
        print(f"warning: {remark.message}", flush=True)
    return _Fit(before, first_bound, time.monotonic() - began)
