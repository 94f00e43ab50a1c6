"""Trains flow, inference network and classifier together on incomplete data."""

from viscos.train.devices import OneDevice as OneDevice
from viscos.train.noise import dequantise as dequantise
from viscos.train.phased import PhasedTrainer as PhasedTrainer
from viscos.train.plan import Plan as Plan
from viscos.train.trainer import Report as Report
from viscos.train.trainer import Trainer as Trainer
