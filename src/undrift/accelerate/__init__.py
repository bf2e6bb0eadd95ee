"""Kernels and layouts that are faster than PyTorch's own. They know modules and tensors, nothing else."""
