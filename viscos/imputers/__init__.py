"""What completes items with holes: flows, and what needs none, behind one interface."""

from viscos.imputers.gaussian import GaussianImputer as GaussianImputer
from viscos.imputers.imputer import Imputer as Imputer
from viscos.imputers.imputer import Kind as Kind
from viscos.imputers.mean import MeanImputer as MeanImputer
from viscos.imputers.network import NetworkImputer as NetworkImputer
from viscos.imputers.viscos import FlowImputer as FlowImputer
from viscos.imputers.viscos import UnfittedImputer as UnfittedImputer

STANDARD: tuple[type[Imputer], ...] = (
    FlowImputer,
    UnfittedImputer,
    NetworkImputer,
    GaussianImputer,
    MeanImputer,
)
"""Those of this package, in the order in which tables show them."""
