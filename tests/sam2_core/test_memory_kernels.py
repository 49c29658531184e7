"""The kernels of SAM 2's memory, in Triton's interpreter, beside PyTorch's own operations."""

import itertools
import os

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: make dev")
pytest.importorskip("triton", reason="needs Triton: .uv/bin/uv pip install triton")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from sam2_core.architecture.hiera import LayerNorm2d  # noqa: E402


@pytest.fixture(scope="module")
def kernels():
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("needs Triton's interpreter from the start: set TRITON_INTERPRET=1")
    from sam2_core.architecture import memory_kernels

    with torch.no_grad():
        yield memory_kernels


@pytest.mark.parametrize(("narrow", "wide", "size"), [(1, 4, 24), (4, 16, 36)])
def test_a_mask_is_downsampled_as_by_convolution_and_norm(kernels, narrow, wide, size):
    torch.manual_seed(0)
    conv, norm = nn.Conv2d(narrow, wide, 3, 2, 1), LayerNorm2d(wide)
    norm.weight.uniform_(0.5, 1.5)
    norm.bias.uniform_(-1, 1)
    conv, norm, x = conv.half(), norm.half(), torch.randn(2, narrow, size, size).half()
    found = kernels.downsampled(x, conv, norm)
    expected = functional.gelu(norm.float()(conv.float()(x.float())))
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert torch.allclose(found.float(), expected, atol=5e-3)


def test_each_channel_is_convolved_by_itself(kernels):
    torch.manual_seed(0)
    conv, x = nn.Conv2d(80, 80, 7, padding=3, groups=80).half(), torch.randn(2, 11, 11, 80).half()
    found = kernels.depthwise(x, conv)
    expected = conv.float()(x.float().permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
    assert torch.allclose(found.float(), expected, atol=3e-3)


def test_objects_attend_to_their_own_keys(kernels):
    torch.manual_seed(0)
    ends = torch.tensor([0, 70, 75, 331], dtype=torch.int32)
    q, k, v = (torch.randn(*shape).half() for shape in ((3, 40, 32), (331, 32), (331, 16)))
    found = kernels.attended(q, k, v, ends)
    for one, (first, last) in enumerate(itertools.pairwise(ends)):
        some = q[one : one + 1], k[None, first:last], v[None, first:last]
        expected = functional.scaled_dot_product_attention(*(part.float() for part in some))[0]
        assert torch.allclose(found[one].float(), expected, atol=3e-3)
