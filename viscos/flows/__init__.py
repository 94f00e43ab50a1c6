"""Normalizing flows: bijections, chains of them, and flows, which map data to a standard normal latent."""

from viscos.flows.bijection import Bijection as Bijection
from viscos.flows.bijection import ClosedForm as ClosedForm
from viscos.flows.chain import Chain as Chain
from viscos.flows.families.continuous.flow import Continuous as Continuous
from viscos.flows.families.continuous.flow import continuous as continuous
from viscos.flows.families.coupling import glow as glow
from viscos.flows.families.coupling import realnvp as realnvp
from viscos.flows.families.iresnet import iresnet as iresnet
from viscos.flows.families.planar import planar as planar
from viscos.flows.families.radial import radial as radial
from viscos.flows.families.sylvester import sylvester as sylvester
from viscos.flows.flow import Flow as Flow
from viscos.flows.foreign.wrap import wrap as wrap
from viscos.flows.layers.affine import Affine as Affine
from viscos.flows.layers.coupling import Coupling as Coupling
from viscos.flows.layers.mix import Mix as Mix
from viscos.flows.layers.residual import Residual as Residual
from viscos.flows.layers.reversed import Reversed as Reversed
from viscos.flows.layers.series import Series as Series
from viscos.flows.layers.squeeze import Squeeze as Squeeze
from viscos.flows.layers.start import first_layers as first_layers
from viscos.flows.layers.whitening import Whitening as Whitening
