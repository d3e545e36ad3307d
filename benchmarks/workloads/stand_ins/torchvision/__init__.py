"""A stand-in for torchvision with generated images, so that mnist/main.py runs without a download."""

from . import datasets, transforms

__all__ = ["datasets", "transforms"]
