"""Tools that work through modules, hooks and state dicts, on a small model of every family.

They run where the tools are installed; the workflow `neighbours.yml` installs them once a week.
tests/test_modules.py has the same without them.
"""

import pytest
import timm
import torch
from torch import nn

import mmpola.timm  # noqa: F401
from mmpola import PolaMultiheadAttention
from tests.helpers.models import SMALL
from tests.helpers.pages import block_with, code_blocks, needs

EVERY_FAMILY = pytest.mark.parametrize('name', SMALL)
SIZE = 64


@pytest.fixture(autouse=True)
def without_a_network(monkeypatch):
    monkeypatch.setenv('HF_HUB_OFFLINE', '1')


def build(name):
    """A model in which every parameter matters."""
    model = timm.create_model(name, num_classes=5, **SMALL[name]).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    return model


def output(model):
    images = torch.randn(2, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        return model(images)


@EVERY_FAMILY
def test_summaries_of_torchinfo_and_torchsummary(name, capsys):
    model = build(name)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    found = needs('torchinfo').summary(model, (2, 3, SIZE, SIZE), verbose=0)
    assert found.total_params == parameters
    needs('torchsummary').summary(model, (3, SIZE, SIZE), device='cpu')
    assert 'MixAndGate' in capsys.readouterr().out


@EVERY_FAMILY
def test_cpu_offload_of_accelerate(name):
    model = build(name)
    expected = output(model)
    needs('accelerate').cpu_offload(model, execution_device='cpu')
    assert {parameter.device.type for parameter in model.parameters()} == {'meta'}
    assert torch.equal(output(model), expected)


@EVERY_FAMILY
def test_lora_of_peft(name):
    peft = needs('peft')
    model = build(name)
    targets = [key for key, module in model.named_modules() if isinstance(module, nn.Linear)]
    model = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=targets))
    images = torch.randn(2, 3, SIZE, SIZE)
    model(images).square().mean().backward()
    model.merge_adapter()
    adapters = {key: x.grad for key, x in model.named_parameters() if 'lora_B' in key}
    assert len(adapters) == len(targets)
    assert [key for key, grad in adapters.items() if not grad.any()] == []


def test_lora_of_peft_on_multihead_attention():
    peft = needs('peft')
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    layer.self_attn = PolaMultiheadAttention(8, 2, batch_first=True)
    targets = ['linear1', 'linear2', 'out_proj']
    model = peft.get_peft_model(layer, peft.LoraConfig(r=2, target_modules=targets))
    model(torch.randn(2, 6, 8)).square().sum().backward()
    adapters = [x.grad for key, x in model.named_parameters() if 'lora_B' in key]
    assert len(adapters) == 3
    assert all(grad.any() for grad in adapters)


@EVERY_FAMILY
@pytest.mark.parametrize('assign', [False, True])
def test_state_dicts_of_torchao(name, assign):
    quantization = needs('torchao.quantization')
    model = build(name)
    quantization.quantize_(model, quantization.Int8WeightOnlyConfig())
    other = build(name)
    if not assign:
        quantization.quantize_(other, quantization.Int8WeightOnlyConfig())
    assert not torch.equal(output(other), output(model))
    other.load_state_dict(model.state_dict(), strict=True, assign=assign)
    assert torch.equal(output(other), output(model))


@EVERY_FAMILY
def test_save_and_load_with_transformers(name, tmp_path):
    """It builds the model on the meta device."""
    transformers = needs('transformers')

    class Config(transformers.PretrainedConfig):
        model_type = 'own'

    class Own(transformers.PreTrainedModel):
        config_class = Config

        def __init__(self, config):
            super().__init__(config)
            self.model = build(name)
            self.post_init()

        def forward(self, x):
            return self.model(x)

    model = Own(Config()).eval()
    model.save_pretrained(tmp_path)
    expected = output(model)
    difference = output(Own.from_pretrained(tmp_path).eval()) - expected
    # Not 0: the file's tensors are aligned differently in memory.
    assert difference.norm() < 1e-5 * expected.norm()


def test_save_and_load_a_segmenter_of_transformers(tmp_path):
    transformers = needs('transformers')
    backbone = transformers.TimmBackboneConfig(backbone='pola_swin_tiny', out_indices=[0, 1, 2, 3])
    config = transformers.UperNetConfig(
        backbone_config=backbone, auxiliary_in_channels=384, num_labels=5, hidden_size=32
    )
    model = transformers.UperNetForSemanticSegmentation(config).eval()
    model.save_pretrained(tmp_path)
    other = transformers.UperNetForSemanticSegmentation.from_pretrained(tmp_path).eval()
    torch.testing.assert_close(output(other).logits, output(model).logits)


def test_the_recipe_for_grad_cam(root):
    needs('pytorch_grad_cam')
    recipe = block_with(code_blocks(root / 'docs' / 'analysis.md'), 'pytorch_grad_cam')
    names = {'__name__': 'page'}
    exec(recipe, names)
    assert names['heat'].shape == (1, 224, 224)
    assert names['heat'].max() > 0
