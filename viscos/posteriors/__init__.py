"""Variational posteriors over the hidden latents."""

from viscos.posteriors.amortised import Amortised as Amortised
from viscos.posteriors.gaussian import DiagonalGaussian as DiagonalGaussian
from viscos.posteriors.gaussian import FullGaussian as FullGaussian
from viscos.posteriors.gaussian import HouseholderGaussian as HouseholderGaussian
from viscos.posteriors.gaussian import LatentGaussian as LatentGaussian
from viscos.posteriors.latent import LatentDistribution as LatentDistribution
from viscos.posteriors.mixture import GaussianMixture as GaussianMixture
from viscos.posteriors.posterior import Diagonal as Diagonal
from viscos.posteriors.posterior import Full as Full
from viscos.posteriors.posterior import Householder as Householder
from viscos.posteriors.posterior import InferenceNetwork as InferenceNetwork
from viscos.posteriors.posterior import Mixture as Mixture
from viscos.posteriors.posterior import PerItem as PerItem
from viscos.posteriors.posterior import Posterior as Posterior
from viscos.posteriors.posterior import usual as usual
