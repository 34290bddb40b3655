"""Decoding images; tests/data/test_class_folders.py decodes those of every mode."""

from PIL import Image

from mmpola.data.read_image import rgb_image


def test_an_exif_rotation_is_not_applied(tmp_path):
    rotated = Image.new('RGB', (2, 1), (100, 100, 100))
    exif = rotated.getexif()
    exif[0x0112] = 6
    rotated.save(tmp_path / 'rotated.jpg', exif=exif)
    assert rgb_image((tmp_path / 'rotated.jpg').read_bytes()).size == (2, 1)
