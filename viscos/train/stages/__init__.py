"""What a trainer in phases does in each of them, a module each; which follow which, `viscos.train.phases` says."""

from viscos.train.completed import CompletedData
from viscos.train.phases import Phase
from viscos.train.stages.bound import Bound
from viscos.train.stages.flow import FlowFit
from viscos.train.stages.posterior import Regression
from viscos.train.stages.prediction import Prediction
from viscos.train.stages.redrawing import Redrawing
from viscos.train.stages.stage import Stage
from viscos.train.stages.tempering import Tempering
from viscos.train.trainer import Trainer

STAGES: dict[str, type[Stage]] = {
    "prediction": Prediction,
    "flow": FlowFit,
    "posterior": Regression,
    "redrawing": Redrawing,
    "bound": Bound,
    "tempering": Tempering,
}
"""By the name of a phase."""


def stage_of(trainer: Trainer, completions: CompletedData, phase: Phase, number: int) -> Stage:
    """What is done in a phase, which has this number in the plan."""
    return STAGES[phase.name](trainer, completions, phase, number)
