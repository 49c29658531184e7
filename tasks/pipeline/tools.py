"""What a run works with in its process: made by whoever runs it, handed on with the job."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from sam2_core.backends.device_owner import lost_device
from sam2_core.types import AutolabelError, DeviceLostError
from tasks.boxes.detectors import Detectors
from tasks.masks.model import Segmenters
from tasks.observe.progress import Progress
from tasks.pipeline.stopping import StopRequest

if TYPE_CHECKING:
    from tasks.boxes.imported import ImportedBoxes
    from tasks.pipeline.device_processes import DeviceProcesses


class Tools:
    """Loaded models, opened boxes, the device, who listens, and whether to stop.

    Attributes:
        progress: hears how far the run has come.
        stop: asks it to begin nothing more.
        segmenters, detectors: models that were loaded.
        device: held by the chunk whose turn with the device it is.
        labeling: entered by a piece that is detected and segmented. Two may (or one more than
            there are `processes`), so that one reads and writes beside the other's turn. Were it
            more, they would take turns, end together, and leave the device to wait for whatever is
            downloaded next.
        processes: those that detect and segment for this one; None: it does so itself.
        loader: one that loads labels into FiftyOne; None: this process does.

    """

    def __init__(self) -> None:
        self.progress, self.stop = Progress(), StopRequest()
        self.segmenters, self.detectors = Segmenters(), Detectors()
        self.device = threading.Lock()
        self.labeling = threading.Semaphore(2)
        self.certificate: dict[str, Any] | None = None  # of the model, once it is known
        self.processes: DeviceProcesses | None = None
        self.loader: DeviceProcesses | None = None
        self._opening = threading.Lock()
        self._imported: dict[tuple[str, str], ImportedBoxes] = {}
        self._lost: DeviceLostError | None = None

    def imported(self, boxes_uri: str, names_uri: str = "", version: str = "") -> ImportedBoxes:
        """Return imported boxes, opened the first time.

        Raises:
            AutolabelError: they are unusable, or not those of the version any more.

        """
        from tasks.pipeline.given_boxes import given_boxes

        key = (boxes_uri, names_uri)
        with self._opening:
            boxes = self._imported.pop(key, None) or given_boxes(boxes_uri, names_uri)
            if version and boxes.version != version:
                raise AutolabelError(f"{boxes_uri} changed while it was being read: run again")
            self._imported[key] = boxes
            return boxes

    @property
    def lost(self) -> DeviceLostError | None:
        """Why the device is lost to this run; None while it works."""
        return self._lost or (self.processes.lost if self.processes else lost_device())

    def lose(self, error: DeviceLostError) -> None:
        """Note that a step has found the device lost, its new processes included."""
        self._lost = self._lost or error

    def check(self) -> None:
        """Call before beginning a piece of work.

        Raises:
            DeviceLostError: the device is lost: what is fetched now would be fetched in vain.
            StoppedError: the run was asked to stop.

        """
        if self.lost is not None:
            raise self.lost
        self.stop.check()
