"""Generated images of the shape of MNIST."""

import torch


class MNIST(torch.utils.data.Dataset):
    """Random digits; root, download and transform are accepted and ignored."""

    def __init__(self, root: str, train: bool = True, download: bool = False, transform: object = None) -> None:
        generator = torch.Generator().manual_seed(0)
        num = 6000 if train else 500
        self.images = torch.randn(num, 1, 28, 28, generator=generator)
        self.labels = torch.randint(0, 10, (num,), generator=generator)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.images[index], int(self.labels[index])
