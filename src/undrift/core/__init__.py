"""Pure functions on trees of tensors, random numbers, checks and the log. Imports nothing else of undrift."""
