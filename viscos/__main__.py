"""`python -m viscos`."""

import sys

from viscos.cli import main

if __name__ == "__main__":
    sys.exit(main())
