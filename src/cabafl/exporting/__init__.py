"""Models of runs as files for other programs, checked on the test samples, each with a model card."""
