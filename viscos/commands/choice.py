"""Which posterior completes the items of `viscos impute`, and where its fit begins, by the settings and the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from viscos.commands.common import chosen_mask
from viscos.core.batch import Incomplete
from viscos.core.build import build
from viscos.core.errors import InputError
from viscos.posteriors import Amortised, LatentGaussian, Posterior
from viscos.runs.trained import Trained

STEPS = 200
"""Of a fit unless the settings say how many."""


@dataclass(frozen=True)
class Choice:
    """What the settings `cfg` mean for a run."""

    trained: Trained
    cfg: dict[str, Any]

    def posterior(self, like: Tensor) -> Posterior:
        """A fresh posterior for items like `like` (B, …), or the network that was trained with the flow.

        Raises `InputError` for settings that the run cannot have.
        """
        network, cfg = self.network, self.cfg
        if self._name == "Amortised":
            return self._as_it_is()
        if cfg["start"] == "network" and network is None:
            raise InputError("start=network: this run has no inference network; take start=gaussian")
        if cfg["start"] == "network" and cfg["partition"] != "same":
            raise InputError(
                f"start=network: the run's network does not know the latents of partition={cfg['partition']}; "
                "take start=gaussian"
            )
        if self._auto and self._taught and self._serves and not self._asks_to_fit:
            assert network is not None
            return network
        return build(cfg["posterior"], like)

    @property
    def network(self) -> Posterior | None:
        """The run's own."""
        return self.trained.model.posterior

    @property
    def steps(self) -> int:
        """Of a fit."""
        return STEPS if self.cfg["steps"] is None else int(self.cfg["steps"])

    @property
    def start(self) -> str:
        """Where a fit begins."""
        knows = self._taught and self.cfg["partition"] == "same"
        usual = "network" if knows else "gaussian" if self.trained.baseline is not None else "prior"
        return self.cfg["start"] or usual

    def taught_there(self, batch: Incomplete) -> LatentGaussian | None:
        """What the run's network says of the items, if a fit begins there."""
        if self.start != "network":
            return None
        assert self.network is not None
        with torch.no_grad():
            return self.network(batch, self.trained.model.flow)

    def guess(self, batch: Incomplete, taught: LatentGaussian | None) -> Tensor | None:
        """The completion (B, …) at whose latent a fit begins, or that of the network that it begins at; or None."""
        if taught is not None:
            whole = taught.start is not None and bool(taught.start.isfinite().all())
            return taught.start if whole else None
        if self.start != "gaussian" or (gaussian := self.trained.baseline) is None:
            return None
        at = batch.to("cpu")
        return gaussian.conditional(at.filled(), at.observed).to(batch.values)

    def line(self, posterior: Posterior) -> str | None:
        """What becomes of a network that was taught, where the settings leave that open."""
        own = "" if self.trained.cfg.get("teach_masks") == "any" else ", under its own masks"
        if posterior is self.network and self._auto:
            return f"no fit: the run's network was taught{own}; steps={STEPS} fits a posterior from there"
        if posterior is self.network:
            return "no fit: posterior=amortised takes the run's network as it is"
        if self._auto and self._taught and not self._serves and not self._asks_to_fit:
            return (
                "the run's network was taught under its own masks only; fitting a posterior to each item "
                "(posterior=amortised takes the network as it is)"
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
        for key in ("steps", "start"):
            if self.cfg[key] is not None:
                raise InputError(
                    f"posterior=amortised takes the run's network as it is, without a fit; leave {key}= out"
                )
        return self.network

    @property
    def _name(self) -> str:
        return str(self.cfg["posterior"]["_target_"]).rpartition(".")[2]

    @property
    def _auto(self) -> bool:
        return self._name == "usual"

    @property
    def _taught(self) -> bool:
        """Whether the run's network was taught by regression, and serves without a fit."""
        return isinstance(self.network, Amortised) and self.network.regressed

    @property
    def _serves(self) -> bool:
        """Whether the network was taught under masks like those that the settings give; none are the data's own."""
        given, saved = chosen_mask(self.cfg), self.trained.cfg
        return given is None or saved.get("teach_masks") == "any" or given == saved.get("mask")

    @property
    def _asks_to_fit(self) -> bool:
        return self.cfg["steps"] is not None or self.cfg["start"] is not None or self.cfg["partition"] != "same"
