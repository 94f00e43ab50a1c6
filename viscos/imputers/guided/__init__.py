"""Rival methods for a continuous flow that is already trained: each completes by walking from noise to data."""

from viscos.imputers.guided.dflow import DFlowImputer as DFlowImputer
from viscos.imputers.guided.dps import DPSImputer as DPSImputer
from viscos.imputers.guided.flower import FlowerImputer as FlowerImputer
from viscos.imputers.guided.pnp import PnPFlowImputer as PnPFlowImputer
from viscos.imputers.guided.replacement import ReplacementImputer as ReplacementImputer
