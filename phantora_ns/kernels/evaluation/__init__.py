"""How far fitted models and estimators are from measured times.

Why it exists: judging a model needs the look-up and the databases, but neither of them needs the
judgement. So it has a package of its own, which only the command line and bench/ import.
"""
