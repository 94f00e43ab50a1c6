"""Normalizing flows: g from data to latent, f back."""

from viscos.flows.bijection import Flow as Flow
from viscos.flows.composed import Composed as Composed
from viscos.flows.continuous import Continuous as Continuous
from viscos.flows.continuous import continuous as continuous
from viscos.flows.coupling import Coupling as Coupling
from viscos.flows.coupling import glow as glow
from viscos.flows.coupling import realnvp as realnvp
from viscos.flows.foreign import wrap as wrap
from viscos.flows.image import Squeeze as Squeeze
from viscos.flows.iresnet import iresnet as iresnet
from viscos.flows.layer import Affine as Affine
from viscos.flows.layer import Closed as Closed
from viscos.flows.layer import Layer as Layer
from viscos.flows.planar import planar as planar
from viscos.flows.radial import radial as radial
from viscos.flows.residual import Residual as Residual
from viscos.flows.reversed import Reversed as Reversed
from viscos.flows.series import Series as Series
from viscos.flows.sylvester import sylvester as sylvester
from viscos.flows.whitening import Whitening as Whitening
