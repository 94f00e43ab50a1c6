#!/usr/bin/env bash
# The runs behind the README's figures, in order. MNIST is looked for in VISCOS_DATA_DIR, else downloaded.
set -euo pipefail

viscos train
viscos train dataset=mnist missing=0.9 epochs=1 test_items=1000
viscos bench checkpoint="$(ls -d outputs/train/*/ | tail -1)" repeats=7
python "$(dirname "$0")/train_extractor.py" outputs/mnist_extractor.pt
viscos train experiment=debug dataset=mnist test_items=1000
