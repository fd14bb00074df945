"""Tests compute with one thread: the number of threads changes sums."""

import torch

torch.set_num_threads(1)
