"""MisGAN (Li, Jiang and Marlin, 2019): generators of data and masks, an imputer, and their critics."""

from viscos.imputers.misgan.imputer import MisGANImputer as MisGANImputer
