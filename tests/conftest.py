"""Shared by all tests."""

import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("suite", deadline=None, max_examples=50, derandomize=True)
settings.load_profile("suite")
