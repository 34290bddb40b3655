"""A predictor, as tools/predict.py opens it."""

from mmpola.openmmlab.config.build import validate_config
from mmpola.openmmlab.predict.predictor import Predictor
from mmpola.openmmlab.predict.reader import open_reader
from mmpola.openmmlab.start.fit import load_model, read_checkpoint_for


def open_predictor(cfg, path, threshold=0.3):
    """Return the predictor of a config's model with the weights of a checkpoint, on the CPU."""
    model = validate_config(cfg)
    checkpoint = read_checkpoint_for(path, model)
    return Predictor(cfg, load_model(model, checkpoint), open_reader(cfg), checkpoint, threshold)
