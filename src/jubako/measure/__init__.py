"""Measuring: synthetic files of real widths, bytes a token reads, and the benchmark."""
