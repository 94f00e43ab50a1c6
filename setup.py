"""Ships the top-level folder `configs` as `viscos.configs`, which setup.cfg alone cannot say."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["viscos", "viscos.*"]), "viscos.configs"],
    package_dir={"viscos.configs": "configs"},
)
