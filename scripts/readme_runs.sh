#!/usr/bin/env bash
# The runs behind the README's figures, in order. MNIST is looked for in VISCOS_DATA_DIR, else downloaded.
set -euo pipefail

viscos train
viscos train dataset=mnist missing=0.9 epochs=1 test_items=1000
run="$(ls -d outputs/train/*/ | tail -1)"
viscos eval checkpoint="$run" items=1000 draws=32
viscos bench checkpoint="$run"
viscos impute checkpoint="$run" mask=center8 steps=200
