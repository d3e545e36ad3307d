"""Which variables a file may set without the user's consent."""

import re
from pathlib import Path

import pytest

from corewise.accelerate.malleable.idle_threads import build_thread_environment
from corewise.errors import UserError
from corewise.launch.environment import (
    ALLOCATOR_HUGE_PAGES,
    RETAIN_VARIABLES,
    TORCH_HUGE_PAGES,
    build_trial_environment,
)
from corewise.measured.parameters import TrialParameters
from corewise.progress import LOADER_WORKERS
from corewise.study.axes import AXES
from corewise.study.environment_trust import (
    PERFORMANCE_VARIABLES,
    describe_accepted,
    require_trusted_environment,
    select_untrusted,
)
from corewise.tuning.api import tune

KNOWN = [name for names in PERFORMANCE_VARIABLES.values() for name in names]
PAGE = Path(__file__).resolve().parent.parent.parent / "docs/study-files.md"
# Variables by which a file could load code, run a program, or read and write files.
LOADERS = (
    *("LD_PRELOAD", "LD_AUDIT", "LD_LIBRARY_PATH", "LD_DEBUG_OUTPUT", "PATH", "BASH_ENV", "HOME", "TMPDIR"),
    *("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONUSERBASE", "PYTHONPYCACHEPREFIX", "PYTHONWARNINGS"),
    *("OMP_TOOL_LIBRARIES", "KMP_CPUINFO_FILE", "MKL_VERBOSE_OUTPUT_FILE", "MKL_BLACS_MPI", "ACC_PROFLIB"),
    *("MALLOC_TRACE", "MALLOC_CONF", "HEAPPROFILE", "ONEDNN_JIT_DUMP", "ONEDNN_JIT_PROFILE", "XLA_FLAGS"),
    *("TF_XLA_FLAGS", "PJRT_NAMES_AND_LIBRARY_PATHS", "TPU_LIBRARY_PATH", "NCCL_NET_PLUGIN", "CXX", "CC"),
    *("TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "TORCH_HOME", "TRITON_CACHE_DIR", "TORCH_LOGS_OUT"),
    *("COREWISE_PLANS", "COREWISE_NATIVE_CACHE", "XDG_CACHE_HOME", "CUDA_HOME", "CUDA_INJECTION64_PATH"),
)


def test_no_variable_that_loads_code_is_known() -> None:
    assert list(select_untrusted(dict.fromkeys(LOADERS, "x"))) == list(LOADERS)
    assert len(KNOWN) == len(set(KNOWN))
    suspicious = re.compile("PATH|FILE|DIR|LIBRARIES|PRELOAD|AUDIT|PLUGIN|CACHE_HOME|OUTPUT|FLAGS|TOOL|HOOK|STARTUP")
    assert [name for name in KNOWN if suspicious.search(name)] == []


def test_every_variable_that_corewise_sets_is_known_or_found_by_corewise() -> None:
    names = {LOADER_WORKERS, *RETAIN_VARIABLES, *TORCH_HUGE_PAGES, *build_thread_environment({})}
    for runtime in ("torch", "numpy", "jax", "tensorflow"):
        for device in ("cpu", "cuda"):
            values = {axis.name: axis.default for axis in AXES.values()} | {"threads": 1, "device": device}
            params = TrialParameters.from_mapping({"workload": "x", "mode": "infer", "runtime": runtime, **values})
            names |= set(build_trial_environment(params, {}, {}))
    names |= {name for each in ALLOCATOR_HUGE_PAGES.values() for name in each}
    # These can name files, so Corewise alone chooses their values.
    assert set(select_untrusted(dict.fromkeys(names, ""))) == {"XLA_FLAGS", "TF_XLA_FLAGS", "MALLOC_CONF"}


def test_the_message_names_the_file_the_variables_and_what_to_do() -> None:
    variables = {"LD_AUDIT": "/tmp/\x1b[2Jx.so", "OMP_NUM_THREADS": "2"}
    with pytest.raises(UserError) as caught:
        require_trusted_environment(variables, "their.yaml", is_trusted=False)
    assert str(caught.value) == (
        "their.yaml: its environment can load code or change more than speed:\n"
        "  LD_AUDIT='/tmp/\\x1b[2Jx.so'\n"
        "If you trust them, pass --trust-environment (in Python trust_environment=True); otherwise remove them "
        "from its `environment`."
    )
    require_trusted_environment(variables, "their.yaml", is_trusted=True)
    require_trusted_environment({"OMP_NUM_THREADS": "2"}, "their.yaml", is_trusted=False)
    assert describe_accepted(variables, "their.yaml").endswith("sets, as you allow:\n  LD_AUDIT='/tmp/\\x1b[2Jx.so'")
    assert describe_accepted({"OMP_NUM_THREADS": "2"}, "their.yaml") == ""


def test_the_tuner_takes_variables_that_load_code_only_with_consent(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"matmul: its environment can load code.*\n  PYTHONPATH='/x'"):
        tune("matmul", runtime="numpy", environment={"PYTHONPATH": "/x"}, store=tmp_path / "store", quiet=True)
    assert not (tmp_path / "store").exists()


def test_the_page_lists_every_known_variable() -> None:
    section = PAGE.read_text().partition("\n## Environment\n")[2].partition("\n## ")[0]
    rows = [line.split("|") for line in section.splitlines() if line.startswith("| ")][1:]
    listed = {row[1].strip(): tuple(re.findall(r"`([^`]+)`", row[2])) for row in rows}
    assert listed == dict(PERFORMANCE_VARIABLES)
