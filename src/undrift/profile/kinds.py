"""The kind of an operator or a kernel, by its name."""

from __future__ import annotations

import re
from functools import cache

OTHER = "Other"
COMPILED_ROUND = "a compiled round"  # what PyTorch calls a compiled graph and its digest
_CONVOLUTIONS = "Convolutions, pooling"
_PRODUCTS = "Matrix products"
_ELEMENTWISE = "Elementwise"
_REDUCTIONS = "Reductions"
_COPIES = "Copies and gathers"
_RANDOM = "Random numbers, sorts"
_VIEWS = "Views and bookkeeping"
_COMPILED = "Compiled code"

# The first pattern that matches decides. Names are those of PyTorch's operators (`aten::mm`), of the nodes of its
# autograd graph, of compiled code (`triton_poi_fused_...`, which lists what was fused), of kernels of cuBLAS and cuDNN,
# of PyTorch's CUDA templates, which carry what they compute among their arguments, and of our own.
_PATTERNS = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        (_COMPILED, f"^{COMPILED_ROUND}$"),
        (_VIEWS, r"^autograd::|^torch::autograd|^\w+Backward\d*$"),
        (
            _VIEWS,
            r"^(aten::)?(view\w*|_unsafe_view|_reshape_alias|reshape|as_strided|expand\w*|t|transpose|permute|movedim|select"
            r"|slice|narrow|unsqueeze|squeeze|unbind|split\w*|chunk|diagonal|detach|alias|flatten|unflatten|empty\w*"
            r"|new_empty\w*|resize|resolve_conj|resolve_neg|item|_local_scalar_dense|is_nonzero|lift_fresh|result_type|scalar_tensor)_?$",
        ),
        (_ELEMENTWISE, r"^triton_poi_|(^|_)cpp_fused"),
        (_REDUCTIONS, r"^triton_(red|per)_"),
        (_PRODUCTS, r"^triton_(tem|mm)_"),
        (
            _CONVOLUTIONS,
            r"^_(convolve|correlate|transpose|unpool)|[Cc]onv|fprop|dgrad|wgrad|[Pp]ool|im2col|col2im|winograd",
        ),
        (_PRODUCTS, r"gemm|gemv|cutlass|xmma|nvjet|cublas|splitK|matmul|mm(_out)?$|::(mv|addmv|dot|einsum)$"),
        (_PRODUCTS, r"::(\w*_)?linear(_backward\w*)?$|attention|flash|lstm|rnn"),
        (_RANDOM, r"[Ss]ort|topk|TopK|[Rr]andom|::rand|philox|distribution|bernoulli|normal_|uniform|dropout|unique"),
        (
            _COPIES,
            r"Memcpy|Memset|direct_copy|copy|[Cc]lone|contiguous|ToNhwc|ToNchw|[Ff]ill|zero_|::to$|to_mkldnn|to_dense",
        ),
        (_COPIES, r"gather|scatter|::_?index|index_(select|put|copy|add|elementwise|kernel)|indexSelect|embedding"),
        (_COPIES, r"::cat$|::stack$|CatArray|::repeat|::roll$|::flip$"),
        (
            _REDUCTIONS,
            r"reduc|[Ss]oftmax|logsumexp|[Nn]orm|::(sum|mean|prod|all|any|var|std|arg)|::a?(max|min)$|cum|[Ss]can",
        ),
        (_REDUCTIONS, r"[Ll]oss|cross_entropy"),
        (_ELEMENTWISE, r"elementwise|multi_tensor|_foreach|pointwise"),
        (
            _ELEMENTWISE,
            r"::_*(i?add|i?sub|rsub|i?mul|i?div|true_divide|floor_divide|remainder|neg|abs|sign|reciprocal|exp\w*|log\w*"
            r"|r?sqrt|square|pow|sin|cos|tanh\w*|sigmoid\w*|relu\w*|threshold\w*|gelu\w*|silu\w*|clamp\w*|minimum|maximum"
            r"|where|eq|ne|lt|le|gt|ge|bitwise\w*|[li]?(and|or|xor|shift)__|[lr]shift__|logical\w*|is\w+|lerp|addc\w+"
            r"|round|floor|ceil|trunc|arange|full\w*|ones\w*|zeros\w*|one_hot|masked\w*)_?$",
        ),
    )
)


def readable(name: str) -> str:
    """The name of an operator or a kernel as it is shown."""
    return COMPILED_ROUND if name.startswith("## Call CompiledFxGraph") else name


@cache
def kind(name: str) -> str:
    return next((kind for kind, pattern in _PATTERNS if pattern.search(name)), OTHER)
