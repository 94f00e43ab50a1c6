"""Which posterior completes the items of `viscos impute`, and where its fit begins, by the settings and the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from viscos.core.batch import Incomplete
from viscos.core.build import build, maker, makes
from viscos.core.choices import description, names
from viscos.core.errors import InputError
from viscos.posteriors import InferenceNetwork, LatentDistribution, PerItem, Posterior, usual
from viscos.runs.trained import Trained

STARTS = ("network", "gaussian", "prior")
"""Where a fit begins."""
STEPS = 200
"""Of a fit unless the settings say how many."""


@dataclass(frozen=True)
class Asked:
    """What the settings ask of a fit; None where they leave it open."""

    posterior: dict[str, Any]
    """Its plain description."""
    partition: str
    steps: int | None
    start: str | None

    @property
    def network(self) -> bool:
        """Whether an inference network is asked for by name."""
        return makes(self.posterior, InferenceNetwork)

    @property
    def open(self) -> bool:
        """Whether any posterior will do."""
        return maker(self.posterior["_target_"], Posterior) is usual

    @property
    def fit(self) -> bool:
        """Whether something is said of a fit, so that there must be one."""
        return self.steps is not None or self.start is not None or self.partition != "same"


@dataclass(frozen=True)
class Choice:
    """What that means for a run."""

    trained: Trained
    asked: Asked

    def posterior(self, like: Tensor) -> Posterior:
        """A fresh posterior for items like `like` (B, …), or the network that was trained with the flow.

        A network that was taught by regression completes whatever holes there are, however they are given: a fit takes
        minutes or hours, and where both were tried under other masks than the network's own, on a dozen digits, draws
        were no nearer to the truth than chance allows. Raises `InputError` for settings that the run cannot have.
        """
        network, asked = self.network, self.asked
        if asked.network:
            return self._as_it_is()
        if asked.start == "network" and network is None:
            raise InputError("start=network: this run has no inference network; take start=gaussian")
        if asked.start == "network" and asked.partition != "same":
            raise InputError(
                f"start=network: the run's network does not know the latents of partition={asked.partition}; "
                "take start=gaussian"
            )
        if asked.open and self._taught and not asked.fit:
            assert network is not None
            return network
        return build(asked.posterior, PerItem, like)

    @property
    def network(self) -> Posterior | None:
        """The run's own."""
        return self.trained.model.posterior

    @property
    def steps(self) -> int:
        """The number of steps of a fit."""
        return STEPS if self.asked.steps is None else self.asked.steps

    @property
    def start(self) -> str:
        """The place where a fit begins: `network`, `gaussian` or `prior`."""
        knows = self._taught and self.asked.partition == "same"
        usual = "network" if knows else "gaussian" if self.trained.gaussian is not None else "prior"
        return self.asked.start or usual

    def taught_there(self, batch: Incomplete) -> LatentDistribution | None:
        """What the run's network says of the items, if a fit begins there."""
        if self.start != "network":
            return None
        assert self.network is not None
        with torch.no_grad():
            return self.network(batch, self.trained.model.flow)

    def guess(self, batch: Incomplete, taught: LatentDistribution | None) -> Tensor | None:
        """The completion (B, …) at whose latent a fit begins, or that of the network that it begins at; or None."""
        if taught is not None:
            whole = taught.start is not None and bool(taught.start.isfinite().all())
            return taught.start if whole else None
        if self.start != "gaussian" or (gaussian := self.trained.gaussian) is None:
            return None
        at = batch.to("cpu")
        return gaussian.conditional(at.filled(), at.observed).to(batch.values)

    def line(self, posterior: Posterior) -> str | None:
        """How the items are completed, and how otherwise, where the settings leave that open."""
        if posterior is self.network and self.asked.open:
            under = f"the run's network was taught under {self._masks}"
            return f"no fit: {under}; steps={STEPS} fits a posterior from there"
        if posterior is self.network:
            return "no fit: posterior=amortised takes the run's network as it is"
        if self.asked.open and self.network is not None and not self.asked.fit:
            return (
                f"fitting a posterior to each item in {self.steps} steps: the run's network was taught by the bound "
                "alone; posterior=amortised takes it as it is, steps=50 fits for less long"
            )
        return None

    def record(self, posterior: Posterior) -> dict[str, Any]:
        """Which posterior there was, and how it was fitted; plain."""
        if posterior is self.network:
            return {"posterior": "network", "steps": 0, "start": None}
        return {"posterior": type(posterior).__name__, "steps": self.steps, "start": self.start}

    def _as_it_is(self) -> Posterior:
        """The run's network, which is asked for by name."""
        if self.network is None:
            raise InputError(
                "this run has no inference network; take posterior=householder, or train one: teach=regression"
            )
        for key, value in self._another().items():
            raise InputError(
                f"this run's network was trained with another posterior.{key}, {'null' if value is None else value}; "
                "posterior=amortised takes it as it is"
            )
        for key in ("steps", "start"):
            if getattr(self.asked, key) is not None:
                raise InputError(
                    f"posterior=amortised takes the run's network as it is, without a fit; leave {key}= out"
                )
        return self.network

    def _another(self) -> dict[str, Any]:
        """Settings by which the network that is asked for is another than the run's own, as they are there."""
        asked, usual = self.asked.posterior, description("posterior", "amortised")
        if asked == usual:  # whatever the run has
            return {}
        saved = usual | self.trained.cfg.get("posterior", {})
        named = asked in [description("posterior", name) for name in names("posterior")]
        taught = {"held_out"} if named else set()  # what was held out makes no other network
        taught |= {key for key in ("gaussian", "corrects") if asked.get(key) is None}  # as it suits the items
        return {key: saved.get(key) for key, value in asked.items() if key not in taught and value != saved.get(key)}

    @property
    def _taught(self) -> bool:
        """Whether the run's network was taught by regression, and serves without a fit."""
        return self.network is not None and self.network.regressed

    @property
    def _masks(self) -> str:
        """What the network was taught under."""
        saved = self.trained.cfg
        if saved["teach_masks"] == "any":
            return "masks of every kind"
        rate = saved["mask"].get("missing")
        own = "its own masks" + ("" if not rate else f" (missing={rate:g})")
        return own if saved["teach_masks"] == "own" else f"{own} and masks of every kind"
