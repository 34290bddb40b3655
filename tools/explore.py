"""Shows what the linear attention of a trained model does with an image, in a local web page.

    python tools/explore.py CONFIG CHECKPOINT [IMAGE] [--layers NAME …] [--score-thr 0.3] [--port N]
                            [--device cuda:0] [--cfg-options KEY=VALUE …]

The script prints the page's address, which only this computer can open; nothing is sent or loaded
over the network. Drop an image on the page, click a point of it, and choose a layer and a head: the
page shows the model's prediction, the weights of the point's query over the image, and their
entropy. docs/analysis.md defines them. The page needs gradio: pip install -e '.[explore]'.

IMAGE is shown first. Without --layers all linear attention layers of the backbone can be chosen.
Detections with a score below --score-thr are left out. Ctrl-C ends the script with exit status 0;
2: the arguments are invalid, nothing was started.
"""

# No `from __future__ import annotations`: gradio reads the annotations of local functions.

import mmpola.script  # noqa: F401  before all others

import argparse
import os
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from mmpola.apps.analysis import choose_layers, linear_layers
from mmpola.apps.analysis.exploration import Exploration, explore
from mmpola.apps.analysis.geometry import Point
from mmpola.apps.arguments import load_image_config, score, usable_device
from mmpola.apps.prediction.predictor import (
    ClassificationPredictor,
    Predictor,
    ReadImage,
    load_predictor,
)
from mmpola.engine.config import CHECKPOINT_HELP, add_options_argument
from mmpola.messages import UsageError, run_main
from mmpola.read_image import ImageFile

RECENT_IMAGES = 3
"""How many images keep their captured tensors; older ones run through the model again."""

MEAN = 'mean'
"""The choice of the mean over all heads."""


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description='Show what linear attention does with an image, in a local web page',
        allow_abbrev=False,
    )
    parser.add_argument('config', help='config file')
    parser.add_argument('checkpoint', help=CHECKPOINT_HELP)
    parser.add_argument('image', nargs='?', type=Path, help='image file that is shown first')
    parser.add_argument(
        '--layers',
        nargs='+',
        metavar='NAME',
        help='attention layers of the backbone (default: all)',
    )
    parser.add_argument(
        '--score-thr', type=score, default=0.3, help='lowest score of a detection (default: 0.3)'
    )
    parser.add_argument('--port', type=int, help='port of the page (default: a free one)')
    parser.add_argument('--device', help='cpu, cuda:1 … (default: a GPU if there is one)')
    add_options_argument(parser)
    args = parser.parse_args()
    args.device = usable_device(args.device)
    return args


class Explorer:
    """What the page computes, without the page.

    Args:
        predictor: of the images.
        names: of the layers in the backbone, from `choose_layers`.
        threshold: score above which a detection is drawn.
    """

    def __init__(self, predictor: Predictor, names: list[str], threshold: float) -> None:
        self.predictor = predictor
        self.names = names
        self.threshold = threshold
        self.open = lru_cache(RECENT_IMAGES)(self._open)

    def _open(self, path: Path) -> tuple[Exploration, NDArray[Any], str]:
        """Return an image's exploration, the image with the prediction, and the latter in words.

        Raises:
            UsageError: the image cannot be read.
        """
        try:
            pixels = self.predictor.read(path)
            explored = explore(self.predictor.model, self.predictor.reader, self.names, pixels)
        except UsageError as error:
            raise UsageError(f'{path.name}: {error}') from None
        batch = [ReadImage(ImageFile(path, path), pixels)]
        (prediction,) = self.predictor(batch, self.threshold)
        drawing = prediction.drawing
        if isinstance(self.predictor, ClassificationPredictor):  # draws beside the image
            drawing = explored.pixels
        return explored, drawing, prediction.summary

    def heads(self, layer: str) -> list[str]:
        """Return the choices of a head in a layer."""
        count = linear_layers(self.predictor.model.backbone)[layer].num_heads
        numbers = [str(number) for number in range(1, count + 1)]
        return [MEAN, *numbers]

    def show(self, path: Path, layer: str, head: str, point: Point | None) -> list[Any]:
        """Return what the page shows for a point of an image.

        Args:
            path: of the image.
            layer: one of `names`.
            head: one of `heads(layer)`.
            point: a pixel; None for the centre of what the network sees.

        Returns:
            The point; the image with the point; the prediction in words; a text about the query
            with its entropies; and the figures of its weights, and of its entropy in each layer.

        Raises:
            UsageError: the image cannot be read, or the network does not see the pixel.
        """
        explored, drawing, summary = self.open(path)
        if point is None:
            point = explored.centre
        head_index = None
        if head != MEAN:
            head_index = int(head) - 1
        view = explored.view(layer, head_index, point)
        text = f'{view.text}\n\n| weights | entropy |\n| --- | --- |'
        for kind, entropy in view.entropies:
            text += f'\n| {kind} | {entropy} |'
        picture = explored.picture(drawing, point)
        return [point, picture, summary, text, rendered(view.maps), rendered(view.entropy)]


def rendered(figure: Figure) -> NDArray[np.uint8]:
    """Return the pixels of a figure, RGB [H, W, 3]."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def build_page(explorer: Explorer, title: str, image: Path | None) -> Any:
    """Return the page, a gradio.Blocks.

    Args:
        explorer: computes what it shows.
        title: of the page.
        image: shown first; None for none.

    Raises:
        UsageError: gradio is not installed.
    """
    try:
        import gradio as gr
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{error.name}: not installed; the page needs pip install -e '.[explore]'"
        ) from None

    names = explorer.names
    with gr.Blocks(title=title, analytics_enabled=False, fill_width=True) as page:
        gr.Markdown(
            f'# What the attention of {title} reads\n'
            'Click a point of the image: the maps show how much its query reads from every other '
            'place, in the chosen layer and head.'
        )
        path = gr.State(image)
        point = gr.State(None)
        with gr.Row():
            with gr.Column(scale=2):
                upload = gr.File(
                    label='Drop an image here, or choose one', file_types=['image'], height=140
                )
                picture = gr.Image(
                    alt_text='The image with its prediction; click a point',
                    show_label=False,
                    format='jpeg',
                    interactive=False,
                    buttons=[],
                    elem_id='picture',
                )
                prediction = gr.Textbox(label='Prediction', lines=2, interactive=False)
            with gr.Column(scale=3):
                layer = gr.Dropdown(names, value=names[0], label='Layer')
                head = gr.Radio(explorer.heads(names[0]), value=MEAN, label='Head')
                text = gr.Markdown(elem_id='query')
                maps = gr.Image(
                    alt_text='Weights of the query over the image',
                    show_label=False,
                    format='png',
                    interactive=False,
                    buttons=['download'],
                    elem_id='maps',
                )
                entropy = gr.Image(
                    alt_text="Entropy of the query's weights in each layer",
                    show_label=False,
                    format='png',
                    interactive=False,
                    buttons=['download'],
                    elem_id='entropy',
                )
        shown = [point, picture, prediction, text, maps, entropy]

        def show(path: Path | None, layer: str, head: str, point: Point | None) -> list[Any]:
            if path is None:
                return [gr.skip()] * len(shown)
            try:
                return explorer.show(path, layer, head, point)
            except UsageError as error:
                raise gr.Error(str(error), print_exception=False) from None

        def show_upload(file: str, layer: str, head: str) -> list[Any]:
            return [Path(file), *show(Path(file), layer, head, None)]

        def show_click(path: Path, layer: str, head: str, event: gr.SelectData) -> list[Any]:
            explored, _, _ = explorer.open(path)
            return show(path, layer, head, explored.pixel_at(event.index))

        def show_layer(path: Path | None, layer: str, head: str, point: Point) -> list[Any]:
            heads = explorer.heads(layer)
            if head not in heads:
                head = MEAN
            return [gr.Radio(heads, value=head), *show(path, layer, head, point)]

        # The layers of the model report to one image at a time.
        one_at_a_time: dict[str, Any] = {'concurrency_limit': 1, 'concurrency_id': 'model'}
        page.load(show, [path, layer, head, point], shown, **one_at_a_time)
        uploaded = upload.upload(
            show_upload, [upload, layer, head], [path, *shown], **one_at_a_time
        )
        uploaded.then(lambda: None, outputs=upload)  # makes room for the next image
        picture.select(show_click, [path, layer, head], shown, **one_at_a_time)
        layer.input(show_layer, [path, layer, head, point], [head, *shown], **one_at_a_time)
        head.input(show, [path, layer, head, point], shown, **one_at_a_time)
    return page


def serve(page: Any, port: int | None, title: str) -> None:
    """Serve the page at 127.0.0.1 until Ctrl-C; print its address.

    Raises:
        UsageError: the port is taken, or is not a port that this user may use.
    """
    import gradio as gr

    fonts = ['system-ui', 'sans-serif']  # gradio's own are loaded from the network
    try:
        _, address, _ = page.launch(
            server_name='127.0.0.1',
            server_port=port,
            share=False,
            quiet=True,
            prevent_thread_lock=True,
            footer_links=[],
            theme=gr.themes.Default(font=fonts, font_mono=['monospace']),
        )
    except (OSError, OverflowError) as error:
        raise UsageError(f'--port: expected a free port, got {port} ({error})') from None
    print(f'{title}: {address} (Ctrl-C ends it)', flush=True)
    page.block_thread()


def main() -> None:
    args = parse_args()
    cfg, on_meta = load_image_config(args)
    predictor = load_predictor(cfg, on_meta, args.checkpoint, args.device, needs_names=False)
    names = choose_layers(predictor.model.backbone, args.layers)
    explorer = Explorer(predictor, names, args.score_thr)
    if args.image is not None:  # an image that cannot be read is refused before the server starts
        explorer.open(args.image)

    title = Path(args.config).stem
    with TemporaryDirectory() as folder:
        os.environ['GRADIO_TEMP_DIR'] = folder  # read when gradio is imported
        page = build_page(explorer, title, args.image)
        serve(page, args.port, title)


if __name__ == '__main__':
    run_main(main)
