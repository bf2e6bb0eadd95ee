"""One thread: the tests are many and small, and pytest-xdist brings the processes."""

import torch

torch.set_num_threads(1)
