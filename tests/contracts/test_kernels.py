"""Every kernel fulfils the contract on every runtime; a new kernel adds a line here."""

from kernel_contract import build_contract

from corewise.measured.workloads.kernels.cg.workload import CG
from corewise.measured.workloads.kernels.distributed.cg_workload import DISTRIBUTED_CG
from corewise.measured.workloads.kernels.distributed.fft_workload import DISTRIBUTED_FFT
from corewise.measured.workloads.kernels.distributed.product_workload import DISTRIBUTED_PRODUCT
from corewise.measured.workloads.kernels.fft.workload import FFT
from corewise.measured.workloads.kernels.gemm import GEMM
from corewise.measured.workloads.kernels.stream import STREAM
from corewise.measured.workloads.kernels.tiled_product.workload import TILED_PRODUCT

TestStreamCopy = build_contract(STREAM, {"operation": "copy", "size_bytes": 80_008}, {"size_bytes": 10**15})
TestStreamScale = build_contract(STREAM, {"operation": "scale", "size_bytes": 8}, {"size_bytes": 10**15})
TestStreamAdd = build_contract(STREAM, {"operation": "add", "size_bytes": 4096}, {"size_bytes": 10**15})
TestStreamTriad = build_contract(STREAM, {"operation": "triad", "size_bytes": 10**6}, {"size_bytes": 10**15})
TestGemm = build_contract(GEMM, {"size": 64}, {"size": 10**7})
TestGemmOfOddShape = build_contract(GEMM, {"m": 33, "n": 5, "k": 70}, {"m": 10**7, "n": 10**7, "k": 10**7})
TestFft = build_contract(FFT, {"size": 1009}, {"size": 2**40})
TestFftByTiles = build_contract(FFT, {"size": 8400, "method": "tiles", "num_tiles": 12}, {"size": 12 * 2**36})
TestFftInPieces = build_contract(
    FFT,
    {"size": 8400, "method": "tiles", "num_tiles": 12, "signal": "host"},
    {"signal": "host", "method": "tiles", "memory_bytes": 10**15},
)
TestCgDense = build_contract(CG, {"size": 65, "iterations": 12}, {"size": 10**7})
TestCgCsr = build_contract(CG, {"matrix": "csr", "size": 5, "iterations": 4}, {"matrix": "csr", "size": 1289})
TestCgMatrixFree = build_contract(
    CG, {"matrix": "matrix-free", "size": 6, "iterations": 4}, {"matrix": "matrix-free", "size": 1289}
)
TestTiledProduct = build_contract(TILED_PRODUCT, {"size": 150, "tile": 32}, {"size": 10**8, "tile": 32})
TestDistributedCg = build_contract(DISTRIBUTED_CG, {"size": 65, "iterations": 12}, {"size": 10**7})
TestDistributedFft = build_contract(DISTRIBUTED_FFT, {"size": 8400}, {"size": 2**40})
TestDistributedProduct = build_contract(DISTRIBUTED_PRODUCT, {"size": 150, "tile": 32}, {"size": 10**8, "tile": 32})
