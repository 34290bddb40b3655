"""Applications of the core: prediction, analysis, data checks, publishing, generated shapes."""
