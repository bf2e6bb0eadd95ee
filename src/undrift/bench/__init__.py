"""`undrift bench`: the same work for undrift, a plain loop and other libraries, timed side by side.

`works` says what is done, `systems` who does it, `prepare` gives all of them the same samples, weights and cohorts,
`environments` installs other libraries, `measure` runs one system in a process of its own, `session` lets them take
turns, `results` keeps and summarises what came out, `table` and `chart` show it. The drivers in `peers` are scripts
that know nothing of undrift but `peers/job.py`: they run in other environments.
"""
