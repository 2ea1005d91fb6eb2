"""The events of a run and the run folder that stores them."""
