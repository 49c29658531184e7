"""Buckets, profiles and keys of TensorRT engines."""

from __future__ import annotations

import pytest

from sam2_core.backends.tensorrt_plan import Buckets, profiles_for
from sam2_core.types import AutolabelError

DECODER = [
    ("embedding", (-1, 256, 64, 64)),
    ("high_res_s0", (-1, 32, 256, 256)),
    ("high_res_s1", (-1, 64, 128, 128)),
    ("points", (-1, -1, 2)),
    ("labels", (-1, -1)),
    ("image_index", (-1,)),
]


def test_an_input_outside_the_contract_is_refused() -> None:
    with pytest.raises(AutolabelError, match=r"'extra'.*not part of the ONNX contract"):
        profiles_for([*DECODER, ("extra", (-1,))], "decoder", Buckets())


def test_decoders_of_close_ups_are_tuned_for_an_image_of_each_box() -> None:
    buckets = Buckets((8, 64), (1, 32), own_images=True)
    eight, many, _ = profiles_for(DECODER, "decoder", buckets)
    assert [shape[0] for shape in eight.shapes["embedding"]] == [1, 8, 32]
    assert [shape[0] for shape in many.shapes["embedding"]] == [1, 32, 32]
