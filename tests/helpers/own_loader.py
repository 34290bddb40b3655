"""A loader as users write it, for `custom_imports`: 12 bits in 16-bit files of any bands."""

import cv2
import numpy as np
from mmcv.transforms import BaseTransform
from mmengine.registry import TRANSFORMS


@TRANSFORMS.register_module()
class TwelveBits(BaseTransform):
    """Loads an image to 0 ... 255."""

    def transform(self, results):
        pixels = cv2.imread(results['img_path'], cv2.IMREAD_UNCHANGED)
        assert pixels is not None, 'not a picture'
        results['img'] = pixels.astype(np.float32) / 16
        results['img_shape'] = results['ori_shape'] = pixels.shape[:2]
        return results
