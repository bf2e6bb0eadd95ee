"""What one client computes: a module as a pure function, its batches, gradients, local optimisers, evaluation."""
