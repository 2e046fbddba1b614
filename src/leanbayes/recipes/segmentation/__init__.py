"""Segmentations by several experts."""
