"""Pretraining on MMEngine: classifier, data, teacher, optimizer, schedule, converting weights."""
