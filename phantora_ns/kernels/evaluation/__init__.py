"""How far fitted models and estimators are from times that were measured.

Why it exists: a model needs the look-up and the databases to be judged, and neither needs the
judgement; so it lies beside them and nothing imports it but the command line and bench/.
"""
