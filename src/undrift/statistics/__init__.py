"""Whether a difference is real: pure functions of arrays, which know nothing of runs."""
