"""Image classification on MMEngine: model, data preprocessor, metric and hook."""
