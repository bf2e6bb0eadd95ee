"""Faster kernels and memory layouts for PyTorch's modules. Knows modules and tensors, nothing of federations."""
