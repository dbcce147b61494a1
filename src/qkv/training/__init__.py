"""Training: the assembly, the loop, the run folder."""
