"""Trains the extractor of FID on MNIST, all of whose pixels are given: `python scripts/train_extractor.py <file>.pt`.

Eight epochs of Adam, one thread, seed 0: the same machine and torch write the same bytes. The number of epochs was
fixed beforehand; the test digits serve to report the accuracy alone.
"""

from __future__ import annotations

import hashlib
import io
import sys
from pathlib import Path

import torch
import torch.nn.functional as F

from viscos import atomic
from viscos.data.datasets import Images, load
from viscos.data.incomplete import epoch_order
from viscos.metrics.extractor import MnistNet

EPOCHS, BATCH, RATE, SEED = 8, 64, 2e-3, 0


def main(path: Path) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    train, test, net = load("mnist", "train"), load("mnist", "test"), MnistNet()
    fit(net, train)
    print(f"accuracy on {len(test)} test digits: {accuracy(net, test):.4f}")
    # Through a buffer, since torch writes a file's name into the file.
    buffer = io.BytesIO()
    torch.save(dict(net.state_dict()), buffer)
    atomic.write(path, lambda temporary: temporary.write_bytes(buffer.getvalue()))
    print(f"sha256 {hashlib.sha256(buffer.getvalue()).hexdigest()}  {path}")


def fit(net: MnistNet, train: Images) -> None:
    """Cross-entropy by Adam, its rate falling to zero along a cosine."""
    assert train.labels is not None
    optimiser = torch.optim.Adam(net.parameters(), RATE)
    steps = EPOCHS * -(-len(train) // BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for epoch in range(EPOCHS):
        total = 0.0
        for rows in epoch_order(len(train), SEED, epoch).split(BATCH):
            loss = F.cross_entropy(net.scores(net.features(train.values[rows])), train.labels[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
            total += float(loss.detach()) * len(rows)
        print(f"epoch {epoch + 1}/{EPOCHS}: cross-entropy {total / len(train):.4f}", flush=True)


@torch.no_grad()
def accuracy(net: MnistNet, images: Images) -> float:
    """Share of images whose highest score is their label's."""
    assert images.labels is not None
    predicted = torch.cat([net.scores(net.features(part)).argmax(1) for part in images.values.split(1000)])
    return float((predicted == images.labels).double().mean())


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python scripts/train_extractor.py <file>.pt")
    main(Path(sys.argv[1]))
