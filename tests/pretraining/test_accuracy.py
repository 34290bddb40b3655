"""Top-k accuracy compared with a plain loop."""

import re

import pytest
import torch
from mmengine.evaluator import Evaluator
from mmengine.structures import BaseDataElement
from torch.testing import assert_close

from mmpola.pretraining.accuracy import Accuracy


def samples(scores, labels):
    return [
        BaseDataElement(pred_score=score, gt_label=int(label))
        for score, label in zip(scores, labels, strict=True)
    ]


def evaluate(made, batch=7, **arguments):
    evaluator = Evaluator([Accuracy(**arguments)])
    for start in range(0, len(made), batch):
        evaluator.process(made[start : start + batch])
    return evaluator.evaluate(len(made))


def test_equals_a_plain_loop():
    scores = torch.randn(50, 9).softmax(1)
    labels = torch.randint(9, (50,))
    found = evaluate(samples(scores, labels), topk=(1, 3, 9))
    for k in (1, 3, 9):
        best = [score.argsort(descending=True)[:k].tolist() for score in scores]
        hits = sum(label in row for label, row in zip(labels.tolist(), best, strict=True))
        assert_close(found[f'accuracy/top{k}'], 2.0 * hits)
    assert list(found) == ['accuracy/top1', 'accuracy/top3', 'accuracy/top9']


def test_equal_scores_are_not_hits_for_every_class():
    found = evaluate(samples(torch.full((10, 5), 0.2), [i % 5 for i in range(10)]), topk=(1, 2))
    assert found == {'accuracy/top1': 20.0, 'accuracy/top2': 40.0}


def test_scores_that_are_nan_are_wrong_whatever_the_class(monkeypatch):
    logged = []
    monkeypatch.setattr('mmpola.pretraining.accuracy.info', logged.append)
    scores = torch.eye(4)
    scores[1] = torch.nan
    scores[2, 3] = torch.nan
    for label in range(4):
        found = evaluate(samples(scores, [0, label, label, 3]), topk=(1, 4))
        assert_close(found['accuracy/top1'], 50.0)
        assert_close(found['accuracy/top4'], 50.0)
        assert found['accuracy/nan_scores'] == 2
    assert '2 of 4 images' in logged[-1] and 'NaN' in logged[-1]


@pytest.mark.parametrize('topk', [(), (0, 1)])
def test_bad_topk(topk):
    with pytest.raises(ValueError, match='topk: expected positive integers'):
        Accuracy(topk=topk)


def test_topk_above_the_number_of_classes_is_refused_when_the_data_set_is_known():
    message = 'topk: expected at most the number of classes, 3, got 5'
    evaluator = Evaluator([Accuracy()])
    with pytest.raises(ValueError, match=re.escape(message)):
        evaluator.dataset_meta = {'classes': ('a', 'b', 'c')}
    with pytest.raises(ValueError, match=re.escape(message)):
        evaluate(samples(torch.rand(2, 3), [0, 1]))
    evaluator.dataset_meta = {'classes': tuple('abcde')}
    assert evaluator.metrics[0].dataset_meta == {'classes': ('a', 'b', 'c', 'd', 'e')}
