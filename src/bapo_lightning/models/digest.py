"""A short name for the weights that a model has at the moment."""

import hashlib

import torch
from torch import nn
from torch.distributed.tensor import DTensor


@torch.no_grad()
def weights_digest(model: nn.Module) -> str:
    """Hash sums over every weight and buffer.

    Any update of the weights changes it; it is no protection against someone who wants two models to have one name.

    Args:
        model: Any module, on any device. Of sharded weights this rank's part counts.

    Returns:
        16 hexadecimal digits.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted((*model.named_parameters(), *model.named_buffers()), key=lambda named: named[0]):
        local = (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach().double()
        sums = (float(local.sum()), float(local.square().sum()))
        digest.update(f"{name} {tuple(tensor.shape)} {sums[0].hex()} {sums[1].hex()}\n".encode())
    return digest.hexdigest()[:16]
