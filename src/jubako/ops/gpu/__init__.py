"""The instruction set on a GPU: one Triton file per operation, on torch tensors and weights repacked for the device.

Imported only where a GPU engine is asked for, as it needs Triton. With TRITON_INTERPRET=1 every kernel also runs on
CPU tensors, slowly: that is how the tests hold it against the reference without a GPU.
"""
