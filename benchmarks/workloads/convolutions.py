"""A real convolution, repeated; `repeats` 21 instead of 20 plants 5 % more arithmetic and nothing else."""

import torch


def factory(batch, mode, repeats, occasion):
    convolution = torch.nn.Conv2d(64, 64, 3, padding=1)
    images = torch.randn(batch, 64, 14, 14)

    def step():
        with torch.inference_mode():
            for _ in range(repeats):
                convolution(images)

    return {"step": step, "samples_per_step": batch}
