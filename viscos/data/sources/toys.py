"""Points in the plane whose density is known by its shape: small problems for flows, and pictures that one can judge.

A split is always the same for the same settings. There is a test point for every five training points.
"""

from __future__ import annotations

import numpy as np
import torch

from viscos.data.vectors import Vectors

_SEEDS = {"train": 0, "test": 1}


def moons(split: str, *, items: int = 5000, spread: float = 0.05) -> Vectors:
    """Two half circles, one in the other's arms (scikit-learn's `make_moons`), with normal noise of `spread`."""
    from sklearn.datasets import make_moons

    return _points("moons", *make_moons(_count(items, split), noise=spread, random_state=_SEEDS[split]))


def circles(split: str, *, items: int = 5000, spread: float = 0.05) -> Vectors:
    """A circle within another of twice its size (scikit-learn's `make_circles`), with normal noise of `spread`."""
    from sklearn.datasets import make_circles

    drawn = make_circles(_count(items, split), noise=spread, factor=0.5, random_state=_SEEDS[split])
    return _points("circles", *drawn)


def pinwheel(split: str, *, items: int = 5000, spread: float = 0.3) -> Vectors:
    """Five arms of a spiral (Johnson et al., 2016).

    A point lies at radius r = 1 + `spread` ε, a little to the side of its arm, whose angle grows with exp(r) / 4.
    """
    rng, n = np.random.default_rng(_SEEDS[split]), _count(items, split)
    arm = rng.integers(0, 5, n)
    along, aside = 1 + spread * rng.standard_normal(n), 0.1 * rng.standard_normal(n)
    angle = 2 * np.pi * arm / 5 + 0.25 * np.exp(along)
    turned = (along * np.cos(angle) - aside * np.sin(angle), along * np.sin(angle) + aside * np.cos(angle))
    return _points("pinwheel", 2 * np.stack(turned, 1), arm)


def checkerboard(split: str, *, items: int = 5000) -> Vectors:
    """Uniform on the eight dark fields of a board of 4 × 4 in [−4, 4]² (as in FFJORD; Grathwohl et al., 2019)."""
    rng, n = np.random.default_rng(_SEEDS[split]), _count(items, split)
    x = rng.uniform(-2, 2, n)
    y = rng.uniform(0, 1, n) - 2 * rng.integers(0, 2, n) + np.floor(x) % 2
    return _points("checkerboard", 2 * np.stack([x, y], 1), None)


def eight_gaussians(split: str, *, items: int = 5000, spread: float = 0.5) -> Vectors:
    """Eight normal distributions on a circle (as in FFJORD: radius 4, deviation `spread`, all divided by √2)."""
    rng, n = np.random.default_rng(_SEEDS[split]), _count(items, split)
    which = rng.integers(0, 8, n)
    centre = 4 * np.stack([np.cos(np.pi * which / 4), np.sin(np.pi * which / 4)], 1)
    return _points("eight_gaussians", (centre + spread * rng.standard_normal((n, 2))) / np.sqrt(2), which)


def _count(items: int, split: str) -> int:
    return items if split == "train" else max(1, items // 5)


def _points(name: str, points: np.ndarray, labels: np.ndarray | None) -> Vectors:
    values = torch.from_numpy(points.astype(np.float32))
    if labels is None:
        return Vectors(name, values, None, 0)
    found = torch.from_numpy(labels.astype(np.int64))
    return Vectors(name, values, found, {"moons": 2, "circles": 2, "pinwheel": 5, "eight_gaussians": 8}[name])
