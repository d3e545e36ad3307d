"""Every kernel keeps the contract, on every runtime; a new one adds a line."""

from kernel_contract import contract_of

from corewise.workloads.kernels.cg import CG
from corewise.workloads.kernels.fft import FFT
from corewise.workloads.kernels.gemm import GEMM
from corewise.workloads.kernels.stream import STREAM
from corewise.workloads.kernels.tiled_product import TILED_PRODUCT

TestStreamCopy = contract_of(STREAM, {"operation": "copy", "size_bytes": 80_008}, {"size_bytes": 10**15})
TestStreamScale = contract_of(STREAM, {"operation": "scale", "size_bytes": 8}, {"size_bytes": 10**15})
TestStreamAdd = contract_of(STREAM, {"operation": "add", "size_bytes": 4096}, {"size_bytes": 10**15})
TestStreamTriad = contract_of(STREAM, {"operation": "triad", "size_bytes": 10**6}, {"size_bytes": 10**15})
TestGemm = contract_of(GEMM, {"size": 64}, {"size": 10**7})
TestGemmOfOddShape = contract_of(GEMM, {"m": 33, "n": 5, "k": 70}, {"m": 10**7, "n": 10**7, "k": 10**7})
TestFft = contract_of(FFT, {"size": 1009}, {"size": 2**40})
TestFftByTiles = contract_of(FFT, {"size": 8400, "method": "tiles", "num_tiles": 12}, {"size": 12 * 2**36})
TestFftInPieces = contract_of(
    FFT,
    {"size": 8400, "method": "tiles", "num_tiles": 12, "signal": "host"},
    {"signal": "host", "method": "tiles", "memory_bytes": 10**15},
)
TestCgDense = contract_of(CG, {"size": 65, "iterations": 12}, {"size": 10**7})
TestCgCsr = contract_of(CG, {"matrix": "csr", "size": 5, "iterations": 4}, {"matrix": "csr", "size": 1289})
TestCgMatrixFree = contract_of(
    CG, {"matrix": "matrix-free", "size": 6, "iterations": 4}, {"matrix": "matrix-free", "size": 1289}
)
TestTiledProduct = contract_of(TILED_PRODUCT, {"size": 150, "tile": 32}, {"size": 10**8, "tile": 32})
