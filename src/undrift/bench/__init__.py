"""`undrift bench`: the same workload timed with undrift, a plain loop and other libraries.

`workloads` are what is computed, `systems` what computes it. `prepare` gives all systems the same samples, weights and
cohorts, `environments` installs other libraries, `measure` runs one system in its own process, `session` alternates
between them, `results` stores and summarises the measurements, `table` and `chart` show them. The drivers in `peers`
are scripts for other environments and import nothing of undrift but `peers/job.py`.
"""
