"""A predictor, as tools/predict.py opens it."""

from mmpola.apps.image_reader import open_reader
from mmpola.apps.prediction.predictor import Predictor
from mmpola.engine.training_checkpoint import load_model, read_checkpoint_for
from mmpola.engine.validate import validate_config


def open_predictor(cfg, path, threshold=0.3):
    """Return the predictor of a config's model with the weights of a checkpoint, on the CPU."""
    model = validate_config(cfg)
    checkpoint = read_checkpoint_for(path, model)
    return Predictor(cfg, load_model(model, checkpoint), open_reader(cfg), checkpoint, threshold)
