"""Carries a plan out: here, in worker processes, on Ray or on Slurm. What is done already is not done again."""
