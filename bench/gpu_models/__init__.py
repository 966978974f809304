"""Measurements on GPU models other than the H200."""
