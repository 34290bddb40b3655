"""The sequence classifier: parameters, cropping, pairs, masks, modes and messages."""

import pytest
import torch
from mmengine.registry import MODELS
from mmengine.structures import BaseDataElement

from mmpola.papers.lra.attention import SEQUENCE_ATTENTION
from tests.helpers.refusals import assert_lines, refusal


def build(vocab_size=32, length=64, num_classes=3, attention='pola', paired=False, **encoder):
    backbone = {
        'type': 'mmpola.SequenceEncoder',
        'vocab_size': vocab_size,
        'length': length,
        'attention': attention,
    }
    backbone.update(encoder)
    config = {'backbone': backbone, 'num_classes': num_classes, 'paired': paired}
    return MODELS.build({'type': 'mmpola.SequenceClassifier', **config})


def batch(lengths, tokens):
    """Draw tokens [B, tokens], 0 beyond the lengths."""
    lengths = torch.tensor(lengths)
    drawn = torch.randint(1, 32, (len(lengths), tokens))
    is_token = torch.arange(tokens) < lengths[:, None]
    return drawn * is_token, lengths


def test_embeddings_start_as_in_skyformer():
    encoder = build(vocab_size=512, length=1024).backbone
    for embedding in (encoder.token, encoder.position):
        assert embedding.weight.std().item() == pytest.approx(0.02, rel=0.05)
        assert abs(embedding.weight.mean().item()) < 1e-3


@pytest.mark.parametrize('longest', [32, 37])
@pytest.mark.parametrize('paired', [False, True])
@pytest.mark.parametrize('attention', SEQUENCE_ATTENTION)
def test_cropping_to_the_longest_sequence_changes_nothing(attention, paired, longest):
    """Computed in float64, the float32 logits are equal bit for bit.

    The last bits of a float64 sum are up to the BLAS.
    """
    model = build(attention=attention, paired=paired, length=128).double().eval()
    tokens, lengths = batch((longest, 5, 17, longest - 1), 128)
    cropped = model(tokens[:, :longest], lengths)
    whole = model(tokens, lengths)
    assert torch.equal(cropped.float(), whole.float())
    torch.testing.assert_close(cropped, whole, rtol=0, atol=1e-15)


def test_the_mean_counts_padding():
    """Skyformer divides the sum of the outputs by the fixed length."""
    model = build(length=64, attention='softmax').double().eval()
    outputs = []
    model.backbone.norm.register_forward_hook(lambda module, inputs, output: outputs.append(output))
    tokens, lengths = batch((7, 20), 20)
    vectors = model.backbone(tokens, lengths)
    expected = torch.stack(
        [output[:n].sum(0) / 64 for output, n in zip(outputs[0], (7, 20), strict=True)]
    )
    torch.testing.assert_close(vectors, expected)


def test_masking_zeros_is_a_switch():
    """By default a black pixel counts; `mask='zeros'` treats it as padding, wherever it is."""
    tokens = torch.randint(1, 32, (1, 10))
    tokens[0, 4] = 0
    pixels = build().double().eval()
    zeros = build(mask='zeros').double().eval()
    zeros.load_state_dict(pixels.state_dict())
    assert not torch.allclose(pixels(tokens), zeros(tokens))
    masked = zeros(tokens)
    for model in (pixels, zeros):
        model.backbone.token.weight.data[0] += 1
    assert torch.equal(zeros(tokens), masked)


def test_pairs_are_compared_by_their_vectors():
    model = build(paired=True).double().eval()
    tokens, lengths = batch((9, 12, 4, 20), 20)
    first, second = model.backbone(tokens, lengths).chunk(2)
    expected = model.head(torch.cat([first, second, first * second, first - second], dim=1))
    assert torch.equal(model(tokens, lengths), expected)
    assert expected.shape == (2, 3)


@pytest.mark.parametrize('attention', SEQUENCE_ATTENTION)
def test_every_parameter_gets_a_gradient(attention):
    model = build(attention=attention, paired=True)
    tokens, lengths = batch((9, 12, 4, 20), 20)
    data = {
        'inputs': tokens,
        'lengths': lengths,
        'data_samples': [BaseDataElement(gt_label=i) for i in (2, 0)],
    }
    model(**model.data_preprocessor(data, training=True), mode='loss')['loss'].backward()
    assert [
        name
        for name, p in model.named_parameters()
        if p.grad is None or not p.grad.isfinite().all()
    ] == []
    samples = model(**model.data_preprocessor(data), mode='predict')
    assert [len(sample.pred_score) for sample in samples] == [3, 3]


def test_the_preprocessor_drops_lengths_without_padding():
    """Then no mask is needed, and softmax attention has its fastest kernels."""
    preprocess = build().data_preprocessor
    tokens, lengths = batch((6, 6), 6)
    assert (
        preprocess({'inputs': tokens, 'lengths': lengths, 'data_samples': None})['lengths'] is None
    )
    tokens, lengths = batch((6, 5), 6)
    assert preprocess({'inputs': tokens, 'lengths': lengths, 'data_samples': None})[
        'lengths'
    ].tolist() == [6, 5]


@pytest.mark.parametrize(
    ('tokens', 'rule', 'found'),
    [
        (torch.ones(1, 65).long(), 'at most 64 tokens', 'got 65'),
        (torch.tensor([[3, 32]]), '[0, 32)', 'got 32'),
        (torch.tensor([[-1, 3]]), '[0, 32)', 'got -1'),
    ],
)
def test_sequences_that_do_not_fit_are_refused(tokens, rule, found):
    message = refusal(
        build().data_preprocessor, {'inputs': tokens, 'lengths': torch.tensor([tokens.shape[1]])}
    )
    assert_lines([message], ('inputs: ', rule, found))


@pytest.mark.parametrize(
    ('name', 'value'), [('attention', 'polar'), ('mask', 'none'), ('num_classes', 0)]
)
def test_errors_name_the_argument(name, value):
    with pytest.raises(ValueError, match=f'{name}: expected .*got {value!r}$'):
        build(**{name: value})
