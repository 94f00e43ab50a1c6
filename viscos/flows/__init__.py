"""Normalizing flows: g from data to latent, f back."""

from viscos.flows.bijection import Flow as Flow
from viscos.flows.composed import Composed as Composed
from viscos.flows.image import Squeeze as Squeeze
from viscos.flows.iresnet import iresnet as iresnet
from viscos.flows.layer import Affine as Affine
from viscos.flows.layer import Layer as Layer
from viscos.flows.residual import Residual as Residual
from viscos.flows.series import Series as Series
from viscos.flows.whitening import Whitening as Whitening
