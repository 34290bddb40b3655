"""E7: 300 pictures of each class of CIFAR-10, from the weights that come with mmpola.

Of 50 pictures of the training split, three are for training and one for validation.
"""

_base_ = './digits.py'

data_root = 'data/cifar10/'
pictures = dict(root=data_root + 'train', every=50)
train_dataloader = dict(dataset=dict(**pictures, places=(1, 18, 35)))
val_dataloader = dict(dataset=dict(**pictures, places=(0,)))
test_dataloader = dict(
    dataset=dict(
        _delete_=True,
        type='mmpola.ClassFolders',
        root=data_root + 'test',
        training=False,
        classes=data_root + 'train',
        transform=_base_.to_crop,
    )
)
