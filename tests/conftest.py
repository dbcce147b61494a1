"""For all tests: one thread. Tensors this small gain nothing from a second, and on a busy machine they wait for it."""

import torch

torch.set_num_threads(1)
