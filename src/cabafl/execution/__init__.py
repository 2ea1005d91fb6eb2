"""Where device jobs run."""
