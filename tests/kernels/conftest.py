"""Why it exists: the property tests here must not depend on how busy the machine is, so no test has
a time limit per example; and modules beside this one (recorded.py) are for all tests here."""

import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))

settings.register_profile("kernels", deadline=None)
settings.load_profile("kernels")
