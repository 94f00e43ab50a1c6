"""scikit-learn's bundled digits."""

from __future__ import annotations

import torch

from viscos.data.images import Images

DIGITS_TEST = 360
"""Test images of `digits`; the other 1437 are for training."""


def digits(split: str) -> Images:
    """scikit-learn's bundled 8x8 digits, their 0-16 scale divided by 16; a fixed stratified split."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import StratifiedShuffleSplit

    pixels, labels = load_digits(return_X_y=True)
    train, test = next(StratifiedShuffleSplit(1, test_size=DIGITS_TEST, random_state=0).split(pixels, labels))
    index = torch.from_numpy(train if split == "train" else test).sort().values
    values = torch.from_numpy(pixels).float().div_(16).reshape(-1, 1, 8, 8)
    return Images("digits", values[index], torch.from_numpy(labels).long()[index], 10)
