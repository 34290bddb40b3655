"""A teacher: the losses, what the teacher sees, and the images that need no labels."""

import copy
import io

import pytest
import timm
import torch
from mmengine.registry import MODELS
from mmengine.structures import BaseDataElement
from PIL import Image
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.task import LogitDistillationTask
from torch import nn
from torch.testing import assert_close

from mmpola.pretraining.class_folders import UnlabelledImages
from mmpola.pretraining.image_classifier import ImageClassifier
from mmpola.pretraining.preprocessor import ClassificationPreprocessor
from mmpola.pretraining.teacher import Distillation, Teacher

BACKBONE = {
    'type': 'mmpola.PolaPVT',
    'arch': {
        'embed_dims': (8, 8, 16, 16),
        'depths': (1, 1, 1, 1),
        'num_heads': (1, 1, 2, 2),
        'mlp_ratios': (1, 1, 1, 1),
    },
    'pretrain_img_size': 32,
    'drop_path_rate': 0.0,
}


class Known(nn.Module):
    """A teacher whose logits are known: the mean of every channel times a weight.

    Its constructor draws random numbers, as that of any network.
    """

    def __init__(self, init_cfg=None, weight=(1.0, 1.0, 1.0), dtype=torch.float32):
        super().__init__()
        torch.rand(3)
        self.weight = nn.Parameter(torch.tensor(weight))
        self.dtype = dtype
        self.seen = None

    def init_weights(self):
        pass

    def forward(self, images):
        assert not self.training
        self.seen = images
        return (images.mean((2, 3)) * self.weight).to(self.dtype)


class Probabilities(Known):
    """What networks return that are exported with a softmax at their end."""

    def forward(self, images):
        return super().forward(images).softmax(1)


class Map(Known):
    """A network without a classifier."""

    def forward(self, images):
        return images


for module in (Known, Probabilities, Map):
    MODELS.register_module(module=module, name=f'{module.__name__}Teacher', force=True)
FILE = {'type': 'Pretrained', 'checkpoint': 'none.pth'}
KNOWN = {'type': 'mmengine.KnownTeacher', 'init_cfg': FILE}


def student(**arguments):
    torch.manual_seed(0)
    return ImageClassifier(copy.deepcopy(BACKBONE), 3, **arguments)


def samples(number, labels=True):
    if labels:
        return [BaseDataElement(gt_label=index % 3) for index in range(number)]
    return [BaseDataElement() for _ in range(number)]


def test_soft_loss_is_timms():
    logits = torch.randn(4, 3, requires_grad=True)
    images = torch.randn(4, 3, 8, 8)

    class Fixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.num_classes = 3
            self.in_chans = 3
            self.pretrained_cfg = {'mean': IMAGENET_DEFAULT_MEAN, 'std': IMAGENET_DEFAULT_STD}

        def forward(self, images):
            return logits

    task = LogitDistillationTask(
        Fixed(), Known(), nn.CrossEntropyLoss(), temperature=2.0, verbose=False
    )
    expected = task(images, torch.tensor([0, 1, 2, 0]))['kd_loss']
    loss = Distillation(KNOWN, temperature=2.0).loss(images, logits)
    assert_close(loss, expected)
    gradient = torch.autograd.grad(loss, logits)[0]
    assert_close(gradient, torch.autograd.grad(expected, logits)[0])


def test_hard_loss_is_cross_entropy_with_the_best_class():
    images = torch.randn(4, 3, 8, 8)
    logits = torch.randn(4, 3, requires_grad=True)
    expected = nn.functional.cross_entropy(logits, images.mean((2, 3)).argmax(1))
    assert_close(Distillation(KNOWN, kind='hard').loss(images, logits), expected)


@pytest.mark.parametrize('kind', ['soft', 'hard'])
def test_nan_of_the_teacher_is_in_the_loss(kind):
    """Its best class would be that one for every image. This is a batch after the first."""
    images = torch.randn(4, 3, 8, 8)
    distillation = Distillation({**KNOWN, 'weight': (1.0, float('nan'), 1.0)}, kind=kind)
    distillation.is_checked = True
    assert distillation.loss(images, torch.randn(4, 3)).isnan()


def test_logits_of_a_teacher_in_half_precision_are_compared_in_float32():
    images = torch.randn(4, 3, 8, 8)
    logits = torch.randn(4, 3)
    loss = Distillation({**KNOWN, 'dtype': torch.bfloat16}).loss(images, logits)
    wanted = images.mean((2, 3)).bfloat16().float()
    expected = nn.functional.kl_div(
        logits.log_softmax(1), wanted.log_softmax(1), reduction='batchmean', log_target=True
    )
    assert loss.dtype == torch.float32
    assert_close(loss, expected)


def test_the_teacher_sees_the_same_crop_in_its_own_size_and_normalisation():
    mean = (0.1, 0.2, 0.3)
    std = (0.5, 0.6, 0.7)
    pixels = torch.rand(2, 3, 1, 1).expand(2, 3, 8, 8)  # of one colour: any size is exact
    column = torch.tensor(IMAGENET_DEFAULT_MEAN).view(3, 1, 1)
    deviation = torch.tensor(IMAGENET_DEFAULT_STD).view(3, 1, 1)
    teacher = Teacher(**KNOWN, image_size=12, mean=mean, std=std)
    teacher((pixels - column) / deviation)
    seen = teacher.model.seen
    assert seen.shape == (2, 3, 12, 12)
    expected = (pixels[..., :1, :1] - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(
        3, 1, 1
    )
    assert_close(seen, expected.expand_as(seen), atol=1e-5, rtol=1e-5)


def test_losses_are_weighted_and_the_teacher_gets_no_gradient():
    model = student(teacher=KNOWN, distillation={'weight': 0.25})
    alone = student()
    images = torch.randn(4, 3, 32, 32)
    losses = model(images, samples(4), mode='loss')
    assert_close(losses['loss_labels'], 0.75 * alone(images, samples(4), mode='loss')['loss'])
    of_teacher = Distillation(KNOWN).loss(images, alone(images))
    assert_close(losses['loss_teacher'], 0.25 * of_teacher)
    sum(losses.values()).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert model.distillation.teacher.model.weight.grad is None


def test_the_teacher_is_in_no_state_and_copies_share_it():
    model = student(teacher=KNOWN)
    random_state = torch.random.get_rng_state()
    model(torch.randn(2, 3, 32, 32, generator=torch.Generator()), samples(2), mode='loss')
    assert torch.equal(torch.random.get_rng_state(), random_state)
    alone = student()
    assert model.state_dict().keys() == alone.state_dict().keys()
    assert len(list(model.parameters())) == len(list(alone.parameters()))
    average = copy.deepcopy(model)
    assert average.distillation.teacher is model.distillation.teacher


def test_predictions_need_no_teacher():
    model = student(teacher={'type': 'mmpola.OnnxTeacher', 'file': 'absent.onnx'})
    images = torch.randn(2, 3, 32, 32)
    assert len(model(images, mode='predict')) == 2
    with pytest.raises(ValueError, match=r'^teacher\.file: expected .*absent\.onnx'):
        model(images, samples(2), mode='loss')


def test_an_onnx_file_teaches_as_its_model(tmp_path):
    pytest.importorskip('onnxruntime')
    pytest.importorskip('onnxscript')
    module = nn.Sequential(nn.Conv2d(3, 3, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    file = tmp_path / 'teacher.onnx'
    batch = torch.export.Dim('batch')
    example = torch.randn(2, 3, 16, 16)
    torch.onnx.export(module, (example,), file, dynamic_shapes=({0: batch},), dynamo=True)
    teacher = Teacher(
        type='mmpola.OnnxTeacher',
        file=str(file),
        mean=IMAGENET_DEFAULT_MEAN,
        std=IMAGENET_DEFAULT_STD,
    )
    images = torch.randn(5, 3, 16, 16)
    assert_close(teacher(images), module(images), atol=1e-5, rtol=1e-5)


def test_a_model_of_timm_brings_its_size_and_normalisation(tmp_path):
    """Also one with other arguments, such as the classes of the file."""
    model = timm.create_model('test_vit', num_classes=5).eval()
    torch.save(model.state_dict(), tmp_path / 'weights.pth')
    config = {
        'type': 'mmpola.TimmTeacher',
        'model_name': 'test_vit',
        'checkpoint_path': str(tmp_path / 'weights.pth'),
        'num_classes': 5,
    }
    teacher = Teacher(**config)
    known = model.pretrained_cfg
    side = known['input_size'][-1]
    column = {key: torch.tensor(known[key]).view(3, 1, 1) for key in ('mean', 'std')}
    assert known['std'] != IMAGENET_DEFAULT_STD
    pixels = torch.rand(2, 3, side, side)
    imagenets = torch.tensor(IMAGENET_DEFAULT_MEAN).view(3, 1, 1)
    images = (pixels - imagenets) / torch.tensor(IMAGENET_DEFAULT_STD).view(3, 1, 1)
    expected = model((pixels - column['mean']) / column['std'])
    assert expected.shape == (2, 5)
    assert_close(teacher(images), expected, atol=1e-5, rtol=1e-5)
    assert teacher.image_size == side


def test_a_model_of_timm_with_a_random_head_is_refused(monkeypatch):
    """timm leaves out the head of weights for another number of classes, without a word."""
    create = timm.create_model
    monkeypatch.setattr(
        'timm.create_model', lambda name, pretrained, **others: create(name, **others)
    )
    timm_teacher = {'type': 'mmpola.TimmTeacher', 'model_name': 'test_vit'}
    images = torch.randn(1, 3, 32, 32)
    assert Teacher(**timm_teacher)(images).shape == (1, 1000)
    with pytest.raises(ValueError, match=r'^teacher\.checkpoint_path: expected .* for 5 classes'):
        Teacher(**timm_teacher, num_classes=5)(images)


@pytest.mark.parametrize(
    ('arguments', 'name'),
    [
        ({'distillation': {'weight': 0.5}}, 'teacher'),
        ({'teacher': KNOWN, 'distillation': {'kind': 'warm'}}, 'distillation.kind'),
        ({'teacher': KNOWN, 'distillation': {'weight': 0}}, 'distillation.weight'),
        ({'teacher': KNOWN, 'distillation': {'temperature': 0}}, 'distillation.temperature'),
        ({'teacher': 'teacher.onnx'}, 'teacher'),
        ({'teacher': {'file': 'teacher.onnx'}}, 'teacher'),
        ({'teacher': {**KNOWN, 'image_size': 0}}, 'teacher.image_size'),
        ({'teacher': {**KNOWN, 'image_size': 'large'}}, 'teacher.image_size'),
        ({'teacher': {**KNOWN, 'mean': (0.5,)}}, 'teacher.mean'),
        ({'teacher': {**KNOWN, 'std': (0.5, 0.5, 0.5, 0.5)}}, 'teacher.std'),
        ({'teacher': {**KNOWN, 'std': (0.5, 0.5, 0)}}, 'teacher.std'),
        ({'teacher': {**KNOWN, 'student_mean': 0.5}}, 'teacher.student_mean'),
        ({'teacher': {**KNOWN, 'student_std': (0, 1, 1)}}, 'teacher.student_std'),
    ],
)
def test_wrong_arguments_are_named(arguments, name):
    with pytest.raises(ValueError, match=f'^{name}: expected '):
        student(**arguments)


@pytest.mark.parametrize('init_cfg', [None, {'type': 'TruncNormal', 'layer': 'Linear'}])
def test_a_teacher_with_random_weights_is_refused(init_cfg):
    teacher = {'type': 'mmengine.KnownTeacher', 'init_cfg': init_cfg}
    with pytest.raises(ValueError, match=r'^teacher\.init_cfg: expected .*: random weights$'):
        student(teacher=teacher)(torch.randn(2, 3, 32, 32), samples(2), mode='loss')
    Teacher(**{**teacher, 'init_cfg': [{'type': 'TruncNormal', 'layer': 'Linear'}, FILE]}).build()


@pytest.mark.parametrize(
    ('teacher', 'kind', 'message'),
    [
        (KNOWN, 'soft', ''),
        ({**KNOWN, 'type': 'mmengine.ProbabilitiesTeacher'}, 'hard', ''),
        ({**KNOWN, 'type': 'mmengine.ProbabilitiesTeacher'}, 'soft', 'logits, got probabilities'),
        ({**KNOWN, 'type': 'mmengine.MapTeacher'}, 'hard', r'logits \[2, 3\].*\[2, 3, 8, 8\]'),
        ({**KNOWN, 'weight': (1.0, float('nan'), 1.0)}, 'hard', 'finite logits'),
        ({**KNOWN, 'weight': (1.0, float('inf'), 1.0)}, 'soft', 'finite logits'),
    ],
)
def test_what_a_teacher_returns_is_checked(teacher, kind, message):
    distillation = Distillation(teacher, kind=kind)
    images = torch.randn(2, 3, 8, 8)
    if not message:
        distillation.check_teacher(images, 3)
        return
    with pytest.raises(ValueError, match=f'^teacher: expected {message}'):
        distillation.check_teacher(images, 3)


def test_a_teacher_of_other_classes_is_refused():
    images = torch.randn(2, 3, 32, 32)
    model = ImageClassifier(copy.deepcopy(BACKBONE), 4, teacher=KNOWN)
    with pytest.raises(ValueError, match=r'^teacher: expected logits \[2, 4\], .*, got \[2, 3\]$'):
        model(images, samples(2), mode='loss')


def test_images_without_labels_are_read_and_mixed(tmp_path):
    for path in ('a.jpg', 'inner/b.png', 'inner/.hidden.png'):
        file = tmp_path / path
        file.parent.mkdir(exist_ok=True)
        Image.new('RGB', (40, 30), (200, 10, 10)).save(file)
    images = UnlabelledImages(str(tmp_path), training=False, transform={'input_size': 32})
    assert len(images) == 2
    item = images[1]
    assert item['inputs'].shape == (3, 32, 32)
    assert item['data_samples'].img_path == str(tmp_path / 'inner' / 'b.png')
    preprocessor = ClassificationPreprocessor(mixup={'mixup_alpha': 1.0}, label_smoothing=0.1)
    batch = torch.stack([torch.zeros(3, 4, 4), torch.ones(3, 4, 4)])
    data = {'inputs': batch, 'data_samples': samples(2, labels=False)}
    mixed = preprocessor(data, training=True)['inputs']
    assert 0 < mixed[0].mean() < 1
    (tmp_path / 'c.jpg').write_bytes(io.BytesIO(b'no image').getvalue())
    with pytest.raises(OSError, match=r'c\.jpg: expected an image that can be read'):
        UnlabelledImages(str(tmp_path), training=False, transform={'input_size': 32})[1]
    (tmp_path / 'empty').mkdir()
    with pytest.raises(ValueError, match='expected images'):
        UnlabelledImages(str(tmp_path / 'empty'), training=True, transform={'input_size': 32})
