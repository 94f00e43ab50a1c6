"""log|det J^OO|: estimators of its gradient, and its value. Two things, two names."""

from viscos.logdet.block import BlockSolver as BlockSolver
from viscos.logdet.estimators import CLADE as CLADE
from viscos.logdet.estimators import NLADE as NLADE
from viscos.logdet.estimators import Auto as Auto
from viscos.logdet.estimators import Exact as Exact
from viscos.logdet.estimators import LogDetEstimator as LogDetEstimator
from viscos.logdet.value import exact_value as exact_value
from viscos.logdet.value import lanczos_value as lanczos_value
from viscos.logdet.value import log_abs_det_block as log_abs_det_block
