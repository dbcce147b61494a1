"""For all tests: one thread, or QKV_TEST_THREADS (`make portable`). Tensors this small gain nothing from a second one,
and on a busy machine they wait for it."""

import os

import torch

torch.set_num_threads(int(os.environ.get("QKV_TEST_THREADS", "1")))
