"""DiffPuter (Zhang et al., 2025): expectation–maximisation with a diffusion model."""

from viscos.imputers.diffputer.imputer import DiffPuterImputer as DiffPuterImputer
