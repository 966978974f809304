"""Models fitted to measured kernel times: between a look-up in the database and the analytic
estimators.

Why it exists: an unseen signature is most often a known kernel at another size. The estimators'
constants describe a GPU at large; what a kernel was measured to take, at the sizes nearest to the
one asked, says more. Three layers, each falling back on the one before: the estimator's time; a
law, non-negative in terms that grow with the work, for each group of alike launches (`law.py`); and
a correction drawn from near neighbours (`residual.py`). `observations.py` says what is fitted on,
`points.py` how a signature is seen, `heldout.py` how far the answers are from configurations that
were left out.
"""

from .model import FittedModels, Prediction

__all__ = ["FittedModels", "Prediction"]
