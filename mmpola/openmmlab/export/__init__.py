"""Write a model as ONNX, and count its parameters and operations."""
