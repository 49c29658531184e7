"""Certificates: an engine labels once its masks have been held against PyTorch's in float32."""
