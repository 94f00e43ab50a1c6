"""The way from a latent x^H to a completion, its weight, and the gradient of the bound."""

from viscos.inference.completion import Completion as Completion
from viscos.inference.completion import complete as complete
from viscos.inference.completion import log_evidence_term as log_evidence_term
from viscos.inference.elbo import GradientEstimate as GradientEstimate
from viscos.inference.elbo import Objective as Objective
from viscos.inference.elbo import lower_bound as lower_bound
from viscos.inference.imputation import Completions as Completions
from viscos.inference.imputation import impute as impute
