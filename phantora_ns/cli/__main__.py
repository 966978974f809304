"""`python -m phantora_ns.cli` is `phantora-ns`."""

import sys

from phantora_ns.cli import main

sys.exit(main())
