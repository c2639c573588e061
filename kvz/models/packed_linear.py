"""Linear layers whose bfloat16 weights lie in the order that a CPU reads them in: the same products, in half the time.

torch's own bfloat16 linear puts the weights in order again for every call, which for the one row of a decode step
takes longer than the product. oneDNN's packed weights are what torch's compiler uses too.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["PackedLinear", "can_pack", "pack_linears"]


class PackedLinear(nn.Module):
    """`nn.Linear` in inference, its weight packed once."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), 1)
        self.bias = None if linear.bias is None else linear.bias.detach()

    @property
    def weight(self) -> Tensor:
        """The weight as it was, `[out, in]`: unpacked anew."""
        weight: Tensor = self._packed.to_dense()
        return weight

    def forward(self, rows: Tensor) -> Tensor:
        """`rows [*, in]` -> `[*, out]`."""
        out: Tensor = torch.ops.mkldnn._linear_pointwise(rows, self._packed, self.bias, "none", [], "")
        return out


def can_pack(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether weights of this dtype can be packed here."""
    if device.type != "cpu" or dtype != torch.bfloat16 or not torch.backends.mkldnn.is_available():
        return False
    names = ("_reorder_linear_weight", "_linear_pointwise", "_is_mkldnn_bf16_supported")
    return all(hasattr(torch.ops.mkldnn, name) for name in names) and torch.ops.mkldnn._is_mkldnn_bf16_supported()


@torch.inference_mode()
def pack_linears(network: nn.Module) -> None:
    """Put a packed layer in the place of every linear one; their own weights are freed unless something shares them."""
    for parent in list(network.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                setattr(parent, name, PackedLinear(child))
