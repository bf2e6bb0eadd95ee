"""Runs: options, preparation, rounds, the training loop, comparisons."""
