"""E7: the small Faster R-CNN on photographs of raccoons, from the weights that come with mmpola.

Every fourth of the 200 names is for the test, every fifth of the others for validation. Of
photographs that are alike (benchmarks/experiments/alike.py) one is kept, the test's if it has one:
49 for the test, 28 for validation, 115 for training.
"""

_base_ = './detect.py'

metainfo = dict(classes=('raccoon',))
dataset = dict(
    data_root='',
    metainfo=metainfo,
    data_prefix=dict(sub_data_root='data/raccoons/'),
    img_subdir='images',
    ann_subdir='annotations',
)
splits = 'benchmarks/experiments/splits/raccoons_'

model = dict(roi_head=dict(bbox_head=dict(num_classes=1)))
train_dataloader = dict(dataset=dict(**dataset, ann_file=splits + 'train.txt'))
val_dataloader = dict(dataset=dict(**dataset, ann_file=splits + 'val.txt'))
test_dataloader = dict(dataset=dict(**dataset, ann_file=splits + 'test.txt'))
