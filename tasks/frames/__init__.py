"""Frames: found, listed, downloaded, read."""
