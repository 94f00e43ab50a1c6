"""Trains the extractor of FID on complete MNIST and writes its weights: `python scripts/train_extractor.py <file>.pt`.

Ten epochs of AdamW with dropout before the last layer, one thread, seed 0: the same machine and torch write the same
bytes. At the end it prints the accuracy on the test digits, and their FID to the training digits.
"""

from __future__ import annotations

import argparse
import hashlib
import io
from pathlib import Path

import torch
import torch.nn.functional as F
from arguments import started

from viscos.core import atomic
from viscos.data.images import Images
from viscos.data.incomplete import epoch_order
from viscos.data.sources.registry import load
from viscos.metrics.extractor import MnistNet
from viscos.metrics.features import FeatureStatistics, Reference

EPOCHS, BATCH, RATE, DECAY, DROPOUT, SEED = 10, 64, 1e-3, 0.05, 0.5, 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, metavar="FILE.pt", help="where the weights are written")
    path = parser.parse_args().file
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    train, test, net = load("mnist", "train"), load("mnist", "test"), MnistNet()
    fit(net, train)
    save(net, path)
    seen = FeatureStatistics(Reference(net.eval(), train))
    for rows in torch.arange(len(test)).split(100):
        seen.update(test.values[rows], test.labels[rows])
    print(f"{len(test)} test digits: accuracy {seen.accuracy.value:.4f}, FID {seen.fid_record()['value']:.4f}")


def fit(net: MnistNet, train: Images) -> None:
    """Minimises the cross-entropy; the rate falls to zero along a cosine."""
    assert train.labels is not None
    optimiser = torch.optim.AdamW(net.parameters(), RATE, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, EPOCHS * -(-len(train) // BATCH))
    for epoch in range(EPOCHS):
        total = 0.0
        for rows in epoch_order(len(train), SEED, epoch).split(BATCH):
            features = F.dropout(net.features(train.values[rows]), DROPOUT)  # which commutes with ReLU
            loss = F.cross_entropy(net.scores(features), train.labels[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
            total += float(loss.detach()) * len(rows)
        print(f"epoch {epoch + 1}/{EPOCHS}: cross-entropy {total / len(train):.4f}", flush=True)


def save(net: MnistNet, path: Path) -> None:
    """Writes the weights, and prints the file's hash."""
    buffer = io.BytesIO()  # torch writes the name of a file into it, and a buffer has none
    torch.save(dict(net.state_dict()), buffer)
    atomic.write(path, lambda temporary: temporary.write_bytes(buffer.getvalue()))
    print(f"sha256 {hashlib.sha256(buffer.getvalue()).hexdigest()}  {path}")


if __name__ == "__main__":
    started(main)
