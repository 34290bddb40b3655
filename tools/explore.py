"""Shows what the linear attention of a trained model does with an image, in a local web page.

    python tools/explore.py CONFIG CHECKPOINT [--port N] [--device cuda:0]
                            [--skip-checks NAME …] [--cfg-options KEY=VALUE …]

Drop the file of an image on the page, click a point, and choose a layer and a head: the page draws
the same figures as tools/analyze.py, which docs/analysis.md explains. The file is read by the test
pipeline of the config. Only this computer can open the page, and nothing is sent or loaded over the
network. Ctrl-C ends the script. The page needs gradio: pip install -e '.[explore]'.
"""

# No `from __future__ import annotations`: gradio reads the annotations of local functions.

from mmpola.command import prepare_script

prepare_script()  # before torch is imported

import argparse
from functools import lru_cache
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from mmengine.config import Config
from numpy.typing import NDArray

from mmpola.messages import UsageError, run_main
from mmpola.openmmlab.checks import add_skip_argument, image_lines, names_to_skip
from mmpola.openmmlab.config.build import unwrapped
from mmpola.openmmlab.config.read import (
    add_device_argument,
    add_model_arguments,
    add_options_argument,
)
from mmpola.openmmlab.predict.reader import ImageReader, load_image_config, open_reader
from mmpola.openmmlab.start.fit import load_model, read_checkpoint_for
from mmpola.papers import analysis

MEAN = 'mean'
"""The choice of the mean over all heads."""


class Explorer:
    """What the page draws, without the page. The last image runs through the backbone once."""

    def __init__(self, cfg: Config, model: Any, reader: ImageReader) -> None:
        self.cfg = cfg
        self.model = model
        self.reader = reader
        self.layers = analysis.linear_layers(model.backbone)
        self.open = lru_cache(maxsize=1)(self._open)

    def _open(self, path: str) -> tuple[analysis.Scene, dict[str, analysis.LayerInputs]]:
        scene = analysis.open_scene(self.model, self.reader, Path(path))
        return scene, analysis.observe(self.model.backbone, scene.inputs, lambda layer: layer)

    def picture(self, path: str) -> NDArray[Any]:
        """Return the image as it is shown, RGB uint8 [H, W, 3]."""
        scene, _ = self.open(path)
        for line in image_lines(self.cfg, self.reader):
            print(line)
        return scene.pixels

    def heads(self, name: str) -> list[str]:
        """Return the choices of a head in a layer."""
        return [MEAN] + [str(number + 1) for number in range(self.layers[name].num_heads)]

    def maps(self, path: str, name: str, head: str, point: tuple[int, int] | None) -> Figure:
        """Draw the weights of the query at a point; None is the centre of what the network sees."""
        scene, layers = self.open(path)
        point = point or scene.centre
        scene.check_points([point])
        layer = layers[name]
        found = analysis.query_maps(layer, scene.tokens([point], layer.grid))
        side = scene.token_side(layer.grid) * layer.sr_ratio
        index = None if head == MEAN else int(head) - 1
        return analysis.draw_maps(scene, [point], found, side, name, index)

    def charts(self, path: str) -> list[Figure]:
        """Draw the charts of all layers."""
        _, layers = self.open(path)
        analyzed = [analysis.analyze_layer(layer, []) for layer in layers.values()]
        return [draw(analyzed) for draw in analysis.CHARTS.values()]


def build_page(explorer: Explorer, title: str) -> Any:
    """Return the page, a gradio.Blocks."""
    import gradio as gr

    def draw(path: str | None, layer: str, head: str, point: Any) -> Any:
        if path is None:
            return None
        try:
            return explorer.maps(path, layer, head, point)
        except UsageError as error:
            raise gr.Error(str(error), print_exception=False) from None

    def draw_new(path: str, layer: str, head: str) -> list[Any]:
        maps = draw(path, layer, head, None)
        return [explorer.picture(path), None, maps]

    def draw_clicked(path: str, layer: str, head: str, event: gr.SelectData) -> list[Any]:
        point = tuple(event.index)
        return [point, draw(path, layer, head, point)]

    def draw_layer(path: str | None, layer: str, point: Any) -> list[Any]:
        return [gr.Dropdown(explorer.heads(layer), value=MEAN), draw(path, layer, MEAN, point)]

    def draw_charts(path: str | None) -> list[Any]:
        return [None] * len(analysis.CHARTS) if path is None else explorer.charts(path)

    names = list(explorer.layers)
    hour = 3600  # seconds
    with gr.Blocks(title=title, analytics_enabled=False, delete_cache=(hour, hour)) as page:
        gr.Markdown(
            f'# What the attention of {title} reads\nDrop a file and click a point: the maps '
            'show how much its query reads from every other place. 1 is a uniform weight.'
        )
        point = gr.State()
        with gr.Row():
            image = gr.Image(type='numpy', interactive=False, label='Image')
            with gr.Column():
                # gr.Image would convert the file before the pipeline reads it.
                file = gr.File(file_count='single', type='filepath', label='File of an image')
                layer = gr.Dropdown(names, value=names[0], label='Layer')
                head = gr.Dropdown(explorer.heads(names[0]), value=MEAN, label='Head')
        maps = gr.Plot(show_label=False)
        with gr.Accordion('Entropy, gates, parameters and rank of all layers', open=False):
            button = gr.Button('Draw')
            charts = [gr.Plot(show_label=False) for _ in analysis.CHARTS]

        # The layers of the model report to one image at a time.
        once: dict[str, Any] = {'concurrency_limit': 1, 'concurrency_id': 'model'}
        file.upload(draw_new, [file, layer, head], [image, point, maps], **once)
        image.select(draw_clicked, [file, layer, head], [point, maps], **once)
        layer.input(draw_layer, [file, layer, point], [head, maps], **once)
        head.input(draw, [file, layer, head, point], maps, **once)
        button.click(draw_charts, file, charts, **once)
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description='Explore linear attention in a local web page')
    add_model_arguments(parser)
    parser.add_argument('--port', type=int, help='port of the page (default: a free one)')
    add_device_argument(parser)
    add_skip_argument(parser)
    add_options_argument(parser)
    args = parser.parse_args()
    import gradio as gr  # after the arguments, so that -h works without it

    cfg, model = load_image_config(args)
    names_to_skip(cfg)
    checkpoint = read_checkpoint_for(args.checkpoint, model)
    model = unwrapped(load_model(model, checkpoint)).to(args.device)
    page = build_page(Explorer(cfg, model, open_reader(cfg)), Path(args.config).stem)
    fonts = ['system-ui', 'sans-serif']  # gradio's own are loaded from the network
    page.launch(
        server_name='127.0.0.1',
        server_port=args.port,
        max_file_size='50mb',
        theme=gr.themes.Default(font=fonts, font_mono=['monospace']),
    )


if __name__ == '__main__':
    run_main(main)
