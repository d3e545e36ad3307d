"""Start a rank: `start_rank CASE RANK NUM_RANKS FOLDER`. CASE is MODULE:FUNCTION; the result is FOLDER/RANK.json."""

import importlib
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist


def main() -> None:
    case, rank, num_ranks, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = dist.FileStore(os.path.join(folder, "store"), num_ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=num_ranks)
    module, name = case.split(":")
    result = getattr(importlib.import_module(f"tests.accelerate.collectives.{module}"), name)(rank, num_ranks)
    aside = Path(folder, f"{rank}.aside")
    aside.write_text(json.dumps(result))
    aside.rename(Path(folder, f"{rank}.json"))
    # The process group of a dead rank cannot be destroyed.
    os._exit(0)


if __name__ == "__main__":
    main()
