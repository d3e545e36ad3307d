"""Corewise measures, explains and improves how deep-learning and HPC workloads run on a machine."""

__version__ = "0.1.0"
