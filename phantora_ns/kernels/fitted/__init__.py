"""Models fitted to measured kernel times: between a look-up in the database and the estimators.

Why it exists: an unmeasured signature is most often a known kernel at another size. The estimators'
constants describe a GPU at large; what a kernel was measured to take, at the sizes nearest to the
one asked for, says more. Each of three layers falls back on the one before: the estimator's time; a
law for each group of similar launches, non-negative in terms that grow with the work (`law.py`);
and a correction drawn from near neighbours (`residual.py`).

`points.py` describes a signature to the models, `model.py` holds them, and `predictor.py` decides
when they answer. `evaluation/heldout.py` measures their error. Nothing is imported here: the models
need numpy, and the launcher does without it.
"""
