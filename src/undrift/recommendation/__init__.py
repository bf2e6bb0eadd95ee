"""Which algorithm to use, from the stored results of all of them in sixteen settings."""
