"""Measures of completions: each sees draws, truth, mask and labels of a batch, and gives a record."""

from viscos.core.labels import TRUTH as TRUTH
from viscos.metrics.classification import TrainedAlong as TrainedAlong
from viscos.metrics.draws import Coverage as Coverage
from viscos.metrics.draws import EnergyAndSpread as EnergyAndSpread
from viscos.metrics.features import Reference as Reference
from viscos.metrics.metric import Metric as Metric
from viscos.metrics.metric import PointMetric as PointMetric
from viscos.metrics.metric import Truth as Truth
from viscos.metrics.points import Errors as Errors
from viscos.metrics.points import Recognition as Recognition
