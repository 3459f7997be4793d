"""Two of `sgl_kernel.kvcacheio`'s functions over host memory: what they copy, by plain arithmetic of addresses."""

from __future__ import annotations

import ctypes
import sys
import types

import pytest
import torch


def _copy(target: int, source: int, length: int) -> None:
    ctypes.memmove(target, source, length)


def transfer_kv_all_layer_mla_lf_pf(
    src_layers: torch.Tensor,
    dst: torch.Tensor,
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    item_size: int,
    dst_layout_dim: int,
    num_layers: int,
    block_quota: int = 2,
    num_warps_per_block: int = 32,
) -> None:
    assert src_layers.dtype == torch.uint64
    assert len(src_layers) == num_layers
    for source, target in zip(src_indices.tolist(), dst_indices.tolist(), strict=True):
        for layer, base in enumerate(src_layers.tolist()):
            at = dst.data_ptr() + target * dst_layout_dim + layer * item_size
            _copy(at, base + source * item_size, item_size)


def transfer_kv_per_layer_mla_pf_lf(
    src: torch.Tensor,
    dst: torch.Tensor,
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    layer_id: int,
    item_size: int,
    src_layout_dim: int,
    block_quota: int | None = None,
    num_warps_per_block: int = 32,
) -> None:
    for source, target in zip(src_indices.tolist(), dst_indices.tolist(), strict=True):
        at = src.data_ptr() + source * src_layout_dim + layer_id * item_size
        _copy(dst.data_ptr() + target * item_size, at, item_size)


def install(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """Let these be imported instead of SGLang's."""
    module = types.ModuleType("sgl_kernel.kvcacheio")
    module.transfer_kv_all_layer_mla_lf_pf = transfer_kv_all_layer_mla_lf_pf  # type: ignore[attr-defined]
    module.transfer_kv_per_layer_mla_pf_lf = transfer_kv_per_layer_mla_pf_lf  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sgl_kernel", types.ModuleType("sgl_kernel"))
    monkeypatch.setitem(sys.modules, "sgl_kernel.kvcacheio", module)
    return module
