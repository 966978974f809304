"""`phantora-ns sweep`: many runs of one job with different settings, and which of them is best.

Layers: `grid` (which points), `spec` (what a file or the command line asks for), `point` (the run of one
point), `admission` (how many at once), `engine` (where runs are: `local`, or `dask_engine` and
`dask_worker`), `results` (the folder), `judge` (best, Pareto), `show` and `page` (what a person sees),
`sweep_run` (all of it)."""
