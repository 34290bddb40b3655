"""A small generated data set of shapes, to try detection, segmentation and classification without a download.

    python -m mmpola.shapes OUT --images 600

draws seeded scenes of six shapes on textured backgrounds and writes them in three layouts: COCO instances (`OUT/coco`),
label maps as in ADE20K (`OUT/ade`) and one folder per class (`OUT/classes`).
"""

try:
    import cv2  # noqa: F401
except ModuleNotFoundError:
    # with `name`, `python -m mmpola.shapes` prints one line instead of a traceback
    raise ImportError('mmpola.shapes needs OpenCV: pip install opencv-python', name=__name__) from None

from mmpola.shapes.dataset import write_dataset
from mmpola.shapes.outline import CLASSES
from mmpola.shapes.scene import Instance, Scene, draw_scene

__all__ = ['CLASSES', 'Instance', 'Scene', 'draw_scene', 'write_dataset']
