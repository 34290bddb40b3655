"""The number of classes of a model against that of its data."""

from mmpola.data.class_counts import class_count_problems


def test_every_head_with_another_number_is_named():
    predicted = [('model.head.num_classes', 3), ('model.box_head.num_classes', 80)]
    assert class_count_problems(predicted, ('a', 'b', 'c'), 'val_dataloader') == [
        'model.box_head.num_classes: expected 3, the number of classes in val_dataloader (a, b, c), got 80'
    ]
