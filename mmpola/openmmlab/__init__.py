"""A workplace for any network of OpenMMLab: configs, checks, runs, prediction, export."""
