"""Measurements: `make bench`, or `python -m benchmarks [names…]`, prints one JSON line for each.

A quantity carries its unit in its name and is `{"best": …, "median": …}` of several runs; best is the least, but
the most where more is better: `turns_per_second`, `appends_per_commit`, `speed_up`, `of_memory`. Beside each stand
the time of a fixed pure-Python loop and, where SQLite is involved, of one fsynced commit: the mean of one reading
right before each run and one right after it, so that results of different machines and of busy hours compare.
Files are made where `TMPDIR` says: on a disk in memory, a commit costs nothing.
"""
