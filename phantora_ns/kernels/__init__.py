"""How long a kernel or library call takes on a GPU.

`lookup.py` (`KernelTimes`) answers the hub: from measurements where there are any, else from models
fitted to them, else from estimators. `signature.py` says what decides a kernel's time, `rates.py`
what a GPU model can do, `families.py` how people group signatures. `contention.py` and
`queue_slots.py` say what else follows from a signature, `live_times.py` holds what a leader measures
in this run.

`database/` keeps measurements, `fitted/` fits models to them, `estimators/` needs none,
`evaluation/` compares both with real runs, and `binary/` reads GPU code. Nothing here imports
`hub/`, `launch/` or `report/`.
"""
