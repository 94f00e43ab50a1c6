"""Normalizing flows: g from data to latent, f back."""

from viscos.flows.bijection import Flow as Flow
from viscos.flows.composed import Composed as Composed
from viscos.flows.families.continuous.flow import Continuous as Continuous
from viscos.flows.families.continuous.flow import continuous as continuous
from viscos.flows.families.iresnet import iresnet as iresnet
from viscos.flows.families.planar import planar as planar
from viscos.flows.families.radial import radial as radial
from viscos.flows.families.sylvester import sylvester as sylvester
from viscos.flows.foreign.foreign import wrap as wrap
from viscos.flows.layer import Affine as Affine
from viscos.flows.layer import Closed as Closed
from viscos.flows.layer import Layer as Layer
from viscos.flows.layers.coupling import Coupling as Coupling
from viscos.flows.layers.coupling import glow as glow
from viscos.flows.layers.coupling import realnvp as realnvp
from viscos.flows.layers.residual import Residual as Residual
from viscos.flows.layers.reversed import Reversed as Reversed
from viscos.flows.layers.series import Series as Series
from viscos.flows.layers.squeeze import Squeeze as Squeeze
from viscos.flows.layers.whitening import Whitening as Whitening
