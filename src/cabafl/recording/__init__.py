"""What happened, as a stream of small events, and the run folder that keeps it."""
