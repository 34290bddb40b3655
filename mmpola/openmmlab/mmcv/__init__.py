"""mmcv's compiled operators on torchvision's."""
