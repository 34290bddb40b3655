"""Applications of the core, which imports none of them: prediction, analysis, data checks, publishing, shapes."""
