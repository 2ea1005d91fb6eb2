"""The CaBaFL paper (arXiv 2404.12850) as data: its settings, tables and figures with their published values."""
