"""What completes items with holes: flows, and what needs none, behind one interface."""

from viscos.core.labels import Kind as Kind
from viscos.imputers.cost import Cost as Cost
from viscos.imputers.diffputer import DiffPuterImputer as DiffPuterImputer
from viscos.imputers.forest import ForestImputer as ForestImputer
from viscos.imputers.gaussian import CompleteGaussianImputer as CompleteGaussianImputer
from viscos.imputers.gaussian import GaussianImputer as GaussianImputer
from viscos.imputers.given import GivenImputer as GivenImputer
from viscos.imputers.guided import DFlowImputer as DFlowImputer
from viscos.imputers.guided import DPSImputer as DPSImputer
from viscos.imputers.guided import FlowerImputer as FlowerImputer
from viscos.imputers.guided import PnPFlowImputer as PnPFlowImputer
from viscos.imputers.guided import ReplacementImputer as ReplacementImputer
from viscos.imputers.guided.walk import GuidedImputer as GuidedImputer
from viscos.imputers.imputer import Imputer as Imputer
from viscos.imputers.imputer import OnFlow as OnFlow
from viscos.imputers.imputer import Progress as Progress
from viscos.imputers.imputer import check_apart as check_apart
from viscos.imputers.imputer import kinds_of as kinds_of
from viscos.imputers.imputer import quiet as quiet
from viscos.imputers.iterative import IterativeImputer as IterativeImputer
from viscos.imputers.mcflow import MCFlowImputer as MCFlowImputer
from viscos.imputers.mean import MeanImputer as MeanImputer
from viscos.imputers.median import MedianImputer as MedianImputer
from viscos.imputers.misgan import MisGANImputer as MisGANImputer
from viscos.imputers.neighbours import NeighboursImputer as NeighboursImputer
from viscos.imputers.network import NetworkImputer as NetworkImputer
from viscos.imputers.plmcmc import PLMCMCImputer as PLMCMCImputer
from viscos.imputers.viscos import UnfittedImputer as UnfittedImputer
from viscos.imputers.viscos import ViscosImputer as ViscosImputer

GUIDED: tuple[type[GuidedImputer], ...] = (
    ReplacementImputer,
    DPSImputer,
    PnPFlowImputer,
    FlowerImputer,
    DFlowImputer,
)
"""Those that complete by a continuous flow that is trained already, measured where they are asked for."""
