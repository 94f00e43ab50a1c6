#!/usr/bin/env bash
# The runs behind the numbers of docs/measured.md, in order. MNIST is looked for in VISCOS_DATA_DIR, else downloaded.
set -euo pipefail

viscos train
viscos train --multirun experiment=mnist_tables max_steps=2500 pretrain=2 learning_rate=0.003 threads=1
viscos table save=outputs/reference/mnist_tables
viscos bench checkpoint="$(ls -d outputs/sweeps/mnist_tables/*missing_0.9*/ | tail -1)" repeats=7
python "$(dirname "$0")/train_extractor.py" outputs/mnist_extractor.pt
viscos train experiment=debug dataset=mnist test_items=1000
