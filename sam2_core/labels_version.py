"""The version of what decides labels besides weights, parameters and frames: the code."""

# Part of every key. Raise it in the change that alters a box, a mask or a decoded pixel, and all
# drives are labeled anew; tests/integration/test_labels_version.py fails until you do. The files of
# previous versions stay where they are.
LABELS_VERSION = "2"
