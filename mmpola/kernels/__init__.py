"""Whether the kernels of the backend `triton` are right and faster on this machine's GPU.

gate.py checks them in child processes, and keeps a record of what it finds; record.py reads it when
`backend='auto'` chooses.
"""
