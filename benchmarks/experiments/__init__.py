"""Our own experiments: short training runs that compare backbones and attention."""
