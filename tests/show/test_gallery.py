"""PNG as other programs read it."""

import base64
import io

import numpy as np
import pytest

from dissensus.show.gallery import data_uri, png, shrink


@pytest.mark.parametrize("channels", [1, 3])
def test_a_picture_is_read_back_to_the_bit(channels: int) -> None:
    image_module = pytest.importorskip("PIL.Image")
    image = np.random.default_rng(0).integers(0, 256, (channels, 5, 7), dtype=np.uint8)
    with image_module.open(io.BytesIO(png(image))) as read:
        read.load()
        assert read.size == (7, 5)
        np.testing.assert_array_equal(np.asarray(read), np.moveaxis(image, 0, -1).squeeze())


def test_large_pictures_are_averaged_down() -> None:
    image = np.zeros((3, 200, 300), np.uint8)
    image[:, :4, :4] = 160
    small = shrink(image)
    assert small.shape == (3, 50, 75)
    assert small[0, 0, 0] == 160
    assert small.sum() == 3 * 160


def test_pictures_of_other_kinds() -> None:
    uri = data_uri(np.full((2, 3, 3), 9, np.uint8))
    assert base64.b64decode(uri.partition(",")[2]).startswith(b"\x89PNG")
    with pytest.raises(ValueError, match=r"uint8 \[1 or 3, height, width\]"):
        png(np.zeros((1, 2, 2)))
