"""Why it exists: the property tests here must not depend on how busy the machine is, so no test has a time limit per example."""

from hypothesis import settings

settings.register_profile("kernels", deadline=None)
settings.load_profile("kernels")
