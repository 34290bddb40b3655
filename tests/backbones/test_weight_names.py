"""The names of the released files and ours: one to one, in both directions."""

import pytest

from mmpola.backbones import PolaFormerPP, PolaPVT, PolaSwin
from mmpola.backbones.weight_names import (
    COMPUTED_BUFFERS,
    POLA_DEIT,
    POLA_PVT,
    POLA_PVT_V2,
    POLA_SWIN,
    to_ours,
    to_released,
)

FAMILIES = {'pola_pvt': PolaPVT, 'pola_swin': PolaSwin, 'polaformer_pp': PolaFormerPP}
FILES = ('pola_pvt_llll', 'pola_pvt_sr8421', 'pola_swin_llss', 'polaformer_pp')
HEADS = ('norm.', 'proj.', 'head.')


@pytest.mark.parametrize('name', FILES)
def test_names_of_the_authors_files_go_there_and_back(name, golden):
    record = golden(name)
    rules = FAMILIES[record['kind']].released_names
    released = [
        x
        for x in record['checkpoint']['model']
        if not x.startswith(HEADS) and not x.endswith(COMPUTED_BUFFERS)
    ]
    ours = to_ours(dict.fromkeys(record['checkpoint']['model']), rules)
    assert [x for x in ours if not x.startswith(('stem.', 'stages.', *HEADS))] == []
    assert to_ours(ours, rules) == ours
    assert [x for x in to_released(ours, rules) if not x.startswith(HEADS)] == released


@pytest.mark.parametrize(
    ('rules', 'released', 'ours'),
    [
        (POLA_SWIN, 'layers.1.downsample.norm.bias', 'stages.2.downsample.norm.bias'),
        (POLA_PVT, 'pos_embed3', 'stages.2.pos_embed'),
        (POLA_PVT, 'patch_embed1.proj.bias', 'stem.proj.bias'),
        (POLA_PVT, 'patch_embed2.proj.bias', 'stages.1.downsample.proj.bias'),
        (POLA_PVT, 'block3.11.attn.scale', 'stages.2.blocks.11.attn.feature_map.scale'),
        (POLA_PVT_V2, 'norm4.weight', 'norms.3.weight'),
        (POLA_DEIT, 'pos_embed', 'stem.pos_embed'),
        (POLA_DEIT, 'blocks.11.norm1.bias', 'stages.11.blocks.0.norm1.bias'),
        (PolaFormerPP.released_names, 'patch_embed.proj.10.weight', 'stem.layers.9.weight'),
        (
            PolaFormerPP.released_names,
            'layers.0.blocks.1.norm2.norm.bias',
            'stages.0.blocks.1.norm2.bias',
        ),
        (PolaFormerPP.released_names, 'extra_norms.2.norm.weight', 'norms.2.weight'),
        (PolaFormerPP.released_names, 'neck.layers.0.bias', 'neck.layers.0.bias'),
    ],
)
def test_a_name_is_renamed_in_both_directions(rules, released, ours):
    assert to_ours({released: 1}, rules) == {ours: 1}
    assert to_released({ours: 1}, rules) == {released: 1}


@pytest.mark.parametrize(
    ('rules', 'released'),
    [
        (POLA_SWIN, 'layers.1.more.bias'),
        (POLA_SWIN, 'layers.5.downsample.norm.bias'),
        (POLA_PVT, 'block5.0.norm1.bias'),
        (POLA_PVT, 'pos_embed5'),
        (POLA_DEIT, 'blocks.1.more.bias'),
        (PolaFormerPP.released_names, 'patch_embed.proj.12.bias'),
    ],
)
def test_names_that_no_model_has_stay_names_of_the_backbone(rules, released):
    """Strict loading refuses them; what is outside of the backbone would be dropped as another
    head.
    """
    (ours,) = to_ours({released: 1}, rules)
    assert ours.startswith(('stem.', 'stages.'))
