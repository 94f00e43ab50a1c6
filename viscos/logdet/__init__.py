"""Estimators of the gradient of log|det J^OO|; values of log|det| are the business of `viscos.linear`."""

from viscos.logdet.block import BlockSolver as BlockSolver
from viscos.logdet.estimators import CLADE as CLADE
from viscos.logdet.estimators import NLADE as NLADE
from viscos.logdet.estimators import Auto as Auto
from viscos.logdet.estimators import Exact as Exact
from viscos.logdet.estimators import LogDetEstimator as LogDetEstimator
