"""What a training run is to do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from viscos.core.errors import InputError
from viscos.train.phases import Phase

SCHEDULES = ("cosine", "halve")
"""How the learning rate falls."""
TEACH = ("regression", "bound", "both", "none")
"""What teaches the inference network; what of it fits which flow and data, the command says."""
MASKS = ("own", "any", "both")
"""Which masks regression teaches under."""
_WARMUP = 50  # steps over which the rate of the cosine schedule rises, unless the plan says otherwise


@dataclass(frozen=True)
class Plan:
    """How long and how fast to train, and on what. Raises `InputError` for a schedule or masks that there are not."""

    epochs: int
    batch_size: int
    """Items in one step, over all devices and micro-batches together."""
    learning_rate: float
    schedule: str = "cosine"
    """`cosine`: down to zero, once over the steps of `pretrain` and once over the rest; `halve`: half the rate each
    epoch, as in the paper."""
    max_steps: int | None = None
    warmup: int | None = None
    """Steps over which the rate rises linearly; None: 50 for `cosine`, none for `halve`."""
    clip: float = 100.0
    """Largest norm of the gradient of the mean over a batch, in nats; larger ones are scaled down."""
    noise: float | str = 0.05
    """Standard deviation of the noise on training values, or `uniform` for dequantisation of `levels` grey levels."""
    levels: int = 256
    pretrain: int = 0
    """Steps at the beginning in which the inference network alone learns, if held-out entries teach it."""
    augment: Sequence[str] = ()
    """How images are moved about, of `viscos.data.augment.KINDS`."""
    accumulate: int = 1
    """Micro-batches that a step, or each device's share of it, is cut into; they need less memory."""
    ema: float = 0.0
    """Decay of the average of the parameters over the steps; 0: none."""
    phases: Sequence[Phase] = ()
    """What is learnt one after the other; none where all is learnt together."""
    masks: str = "own"
    """What the inference network is taught under: `own`, the masks of items with holes; `any`, see `any_masks`; or
    `both` by turns."""
    redraw: int = 10_000
    """Items that are completed anew in a round, at most."""
    imputed_weight: float = 1.0
    """Of an imputed entry, beside 1 of an observed one, where a flow is matched to completions."""
    patience: int | None = None
    """Measurements of held-back items in a row without a better one that end a phase, or the training; None: no end."""
    seed: int = 0

    def __post_init__(self) -> None:
        for what, word, known in (("schedule", self.schedule, SCHEDULES), ("masks", self.masks, MASKS)):
            if word not in known:
                raise InputError(f"{what} is {word!r}; choose {' or '.join(known)}")

    def steps_per_epoch(self, items: int) -> int:
        """Steps in one pass over `items`."""
        return math.ceil(items / self.batch_size)

    def total(self, items: int) -> int:
        """Steps in all."""
        if self.phases:
            return sum(phase.steps for phase in self.phases)
        steps = self.epochs * self.steps_per_epoch(items)
        return steps if self.max_steps is None else min(steps, self.max_steps)

    def place(self, step: int) -> tuple[int, int]:
        """The number of the phase that a step is in, and its number there; after the last step, one phase more."""
        for k, phase in enumerate(self.phases):
            if step < phase.steps:
                return k, step
            step -= phase.steps
        return len(self.phases), step

    def rate(self, step: int, items: int) -> float:
        """The learning rate of a step: a function of its number, so that resuming needs no state."""
        usual = 0 if self.schedule == "halve" else _WARMUP
        warmup = usual if self.warmup is None else self.warmup
        into, length, share = self._stretch(step, items)
        rate = share * self.learning_rate * min(1.0, (into + 1) / max(1, warmup))
        if self.schedule == "halve":
            return rate * 0.5 ** ((into if self.phases else step) // self.steps_per_epoch(items))
        return rate * 0.5 * (1 + math.cos(math.pi * into / length))

    def _stretch(self, step: int, items: int) -> tuple[int, int, float]:
        """The number of a step in what has one cosine, the steps of that, and its share of the learning rate."""
        if self.phases:
            k, within = self.place(step)
            return within, self.phases[k].steps, self.phases[k].rate
        total, rest = self.total(items), step - self.pretrain
        return (step, min(self.pretrain, total), 1.0) if rest < 0 else (rest, total - self.pretrain, 1.0)
