# mypy: disable-error-code="no-untyped-call,no-any-return,arg-type"
"""The gated delta rule over whole sequences, in chunks (the WY form of arXiv 2412.06464), with gradients.

Within a chunk all is matrix products. Between chunks the state goes through S ← M S + B, where M and B come from
the chunk alone, so that one batched product per chunk is all that has to wait for the one before.
"""

from __future__ import annotations

from typing import Any

import torch

CHUNK = 64


@torch.library.custom_op("train::invert", mutates_args=())
def invert(lower: torch.Tensor) -> torch.Tensor:
    """(I + lower)⁻¹ of strictly lower triangular matrices [..., N, N], row by row: stable where keys repeat."""
    n = lower.shape[-1]
    if not lower.is_cuda:
        eye = torch.eye(n, dtype=lower.dtype)
        return torch.linalg.solve_triangular(
            lower + eye, eye.expand_as(lower), upper=False, unitriangular=True
        ).contiguous()
    from .invert_kernel import invert_on_gpu

    return invert_on_gpu(lower.contiguous())


@invert.register_fake
def _(lower: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(lower, memory_format=torch.contiguous_format)


def _invert_setup(ctx: Any, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
    ctx.save_for_backward(output)


def _invert_backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    (inverse,) = ctx.saved_tensors
    return -(inverse.mT @ grad @ inverse.mT).tril(-1)


invert.register_autograd(_invert_backward, setup_context=_invert_setup)


@torch.library.custom_op("train::scan", mutates_args=())
def scan(m: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """States before each chunk: S_0 = 0, S_{c+1} = m_c S_c + b_c. m, b and the result [chunks, batch, N, N]."""
    states = torch.empty_like(b)
    states[0].zero_()
    for chunk in range(len(m) - 1):
        torch.baddbmm(b[chunk], m[chunk], states[chunk], out=states[chunk + 1])
    return states


@scan.register_fake
def _(m: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(b)


@torch.library.custom_op("train::scan_back", mutates_args=())
def scan_back(m: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    """Gradients of b: those of S_{c+1}, from the last chunk on."""
    carried = torch.empty_like(grad)
    carried[-1].zero_()
    for chunk in range(len(m) - 1, 0, -1):
        torch.baddbmm(grad[chunk], m[chunk].mT, carried[chunk], out=carried[chunk - 1])
    return carried


@scan_back.register_fake
def _(m: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(grad)


def _scan_setup(ctx: Any, inputs: tuple[torch.Tensor, torch.Tensor], output: torch.Tensor) -> None:
    ctx.save_for_backward(inputs[0], output)


def _scan_backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    m, states = ctx.saved_tensors
    carried = scan_back(m, grad.contiguous())
    return carried @ states.mT, carried


scan.register_autograd(_scan_backward, setup_context=_scan_setup)


def delta_rule(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, beta: torch.Tensor, decay: torch.Tensor
) -> torch.Tensor:
    """o_t = S_tᵀ q_t of every token. q, k, v [B, T, heads, N], q and k normed; beta, log decay [B, T, heads].

    T must be whole chunks.
    """
    batch, tokens, heads, n = v.shape
    chunks = tokens // CHUNK

    def cut(x: torch.Tensor) -> torch.Tensor:  # [chunks, B * heads, CHUNK, …]
        x = x.float().view(batch, chunks, CHUNK, heads, -1).permute(1, 0, 3, 2, 4)
        return x.reshape(chunks, batch * heads, CHUNK, -1)

    q, k, v, beta = cut(q), cut(k), cut(v), cut(beta)
    total = cut(decay).cumsum(2)  # [chunks, B * heads, CHUNK, 1]
    seen = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).tril()
    fade = (total - total.mT).masked_fill(~seen, -torch.inf).exp()
    inverse = invert((beta * (k @ k.mT) * fade).tril(-1))
    u = inverse @ (beta * v)
    w = inverse @ (beta * total.exp() * k)
    last = total[:, :, -1:]
    late = k * (last - total).exp()
    m = torch.eye(n, device=q.device) * last.exp() - late.mT @ w
    states = scan(m, late.mT @ u)
    new = u - w @ states
    out = (q * total.exp()) @ states + ((q @ k.mT) * fade) @ new
    return out.view(chunks, batch, heads, CHUNK, n).permute(1, 0, 3, 2, 4).reshape(batch, tokens, heads, n)
