import json
import os
import subprocess
import sys

import pytest
import torch

from corewise.measured.instruction_sets import NEEDED_FLAGS, build_isa_variables
from corewise.measured.parameters import Isa, TrialParameters
from corewise.measured.runtimes.base import Infeasible
from corewise.measured.runtimes.torch.instruction_proof import find_wider_set, prove_instruction_set

PROVE = """
import json, sys
from corewise.measured.parameters import TrialParameters
from corewise.measured.runtimes.torch.instruction_proof import prove_instruction_set
print("before")
facts = prove_instruction_set(TrialParameters.from_mapping({"isa": sys.argv[1]}))
print(json.dumps(dict(facts)))
"""


def read_flags() -> set[str]:
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        return next((set(line.split()) for line in lines if line.startswith("flags")), set())


@pytest.mark.parametrize("isa", ["sse41", "avx2", "avx512"])
def test_a_limited_process_proves_what_its_kernels_use(isa: str) -> None:
    if not set(NEEDED_FLAGS[Isa(isa)]) <= read_flags():
        pytest.skip(f"this CPU has no {isa}")
    env = {**os.environ, **build_isa_variables(Isa(isa)), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", PROVE, isa], env=env, capture_output=True, text=True, check=True)
    # What oneDNN prints goes into the facts, not to the output of the program.
    before, facts_line = done.stdout.splitlines()
    assert before == "before"
    facts = json.loads(facts_line)
    assert facts["aten_isa"] == {"sse41": "DEFAULT", "avx2": "AVX2", "avx512": "AVX512"}[isa]
    if torch.backends.mkldnn.is_available():
        assert facts["onednn_isa"].startswith({"sse41": "Intel SSE4.1", "avx2": "Intel AVX2"}.get(isa, "Intel AVX-512"))
        assert isa in facts["onednn_convolution"]


def test_a_process_without_the_variables_is_refused() -> None:
    if torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        pytest.skip("torch uses no wider instructions here")
    with pytest.raises(Infeasible, match="isa sse41: torch's own kernels use"):
        prove_instruction_set(TrialParameters(isa=Isa.SSE41))


def test_the_default_needs_no_proof() -> None:
    assert prove_instruction_set(TrialParameters()) == {}


def test_a_wider_kernel_of_onednn_is_noticed() -> None:
    assert find_wider_set(Isa.AVX2, "brgconv:avx512_core") == "avx512"
    assert find_wider_set(Isa.AVX512, "brgconv:avx10_1_512_amx") == "amx"
    assert find_wider_set(Isa.AVX512, "jit:avx512_core") is None
    assert find_wider_set(Isa.SSE41, "jit:avx2") == "avx"
