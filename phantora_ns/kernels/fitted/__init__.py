"""Models fitted to measured kernel times. They answer between the look-up in the database and the
estimators.

Why it exists: an unmeasured signature is most often a known kernel at another size. The estimators'
constants describe a GPU in general. Measurements of the kernel itself, at the sizes nearest to the
requested one, say more. There are three layers, and each falls back on the one before: the
estimator's time; a law for each group of similar launches, with non-negative weights on terms that
grow with the work (`law.py`); and a correction from near neighbours (`residual.py`).

`points.py` describes a signature to the models, `model.py` holds them, and `predictor.py` decides
when they answer. `evaluation/heldout.py` measures their error. Nothing is imported here, because
the models need numpy and the launcher does not.
"""
