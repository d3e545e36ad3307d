"""Every framework's arrays keep the contract that kernels are written against."""

from typing import Any

import pytest
from arrays_contract import ArraysContract

from corewise.measured.runtimes.numpy.arrays import NumpyArrays


class TestNumpyArrays(ArraysContract):
    def make(self) -> Any:
        return NumpyArrays()


class TestTorchArrays(ArraysContract):
    def make(self) -> Any:
        pytest.importorskip("torch")
        from corewise.measured.runtimes.torch.arrays import TorchArrays

        return TorchArrays("cpu")


class TestJaxArrays(ArraysContract):
    def make(self) -> Any:
        pytest.importorskip("jax")
        from corewise.measured.runtimes.jax.arrays import JaxArrays

        return JaxArrays()


class TestTensorflowArrays(ArraysContract):
    def make(self) -> Any:
        pytest.importorskip("tensorflow")
        from corewise.measured.runtimes.tensorflow.arrays import TensorflowArrays

        return TensorflowArrays()


class TestTorchArraysOnAGpu(ArraysContract):
    def make(self) -> Any:
        torch = pytest.importorskip("torch")
        from corewise.measured.runtimes.torch.arrays import TorchArrays

        if not torch.cuda.is_available():
            pytest.skip("torch sees no CUDA device here")
        return TorchArrays("cuda")
