"""Builders of the commands that start one process on every node: local, torchrun, mpirun (two kinds), srun."""
