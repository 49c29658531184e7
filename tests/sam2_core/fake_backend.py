"""A stand-in for a device: answers from the prompt alone, and runs out of memory where told."""

import numpy as np

from sam2_core.backends.protocol import Backend, BackendInfo
from sam2_core.types import DeviceMemoryError, Features, LowResMasks, ModelStamp


class FakeDeviceBackend(Backend):
    """Fills each prompt's box; predicted IoU tells which image and box it saw."""

    def __init__(
        self, size=128, most_prompts=10**9, most_images=10**9, device="cpu", close_ups=False
    ):
        self.size, self.most_prompts, self.most_images = size, most_prompts, most_images
        self.calls, self.batches, self.device, self.close_ups = [], [], device, close_ups

    @property
    def info(self):
        stamp = ModelStamp("fake", "0", "0", "fake", "fp32", "0")
        return BackendInfo(stamp, self.size, self.device, self.close_ups)

    def encode(self, images):
        if len(images) > self.most_images:
            raise DeviceMemoryError("fake device: too many images")
        assert all(image.shape == (self.size, self.size, 3) for image in images)
        self.batches.append(len(images))
        brightness = [float(image.mean()) for image in images]
        return Features(brightness, len(images))

    def decode(self, features, prompts):
        if len(prompts) > self.most_prompts:
            raise DeviceMemoryError("fake device: too many prompts")
        self.calls.append(prompts)
        grid = self.size // 4
        cell = (np.arange(grid) + 0.5) * 4
        logits = np.full((len(prompts), grid, grid), -1, np.float32)
        for row, (points, labels) in enumerate(
            zip(prompts.points_model, prompts.labels, strict=True)
        ):
            if labels[0] == 2:
                inside_x = (cell >= points[0, 0]) & (cell <= points[1, 0])
                inside_y = (cell >= points[0, 1]) & (cell <= points[1, 1])
                logits[row][np.ix_(inside_y, inside_x)] = 1
        brightness = np.array(features.data, np.float32)[prompts.image_index]
        left = prompts.points_model[:, 0, 0]
        return LowResMasks(logits, brightness, left, left * 0 + 0.5)
