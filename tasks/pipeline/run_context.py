"""What a run is about (`Job`), and what it works with in its process (`RunContext`)."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from sam2_core.backends.device_owner import DEVICE_OWNER
from sam2_core.backends.kept_frames import KeptFrames
from sam2_core.devices import cuda_devices
from sam2_core.machine import MANY_CORES, usable_cores
from sam2_core.types import AutolabelError, DeviceLostError
from tasks.boxes.detectors import Detectors
from tasks.masks.model import ModelChoice, Segmenters
from tasks.masks.rules import MaskRules
from tasks.observe.progress import Progress
from tasks.pipeline.params import LabelParams
from tasks.store.artifacts import RunStamp, StoredChunk
from tasks.store.tables import as_stored

if TYPE_CHECKING:
    from tasks.boxes.imported import ImportedBoxes
    from tasks.boxes.yolox import AnyDetector
    from tasks.pipeline.device_processes import DeviceProcesses


MOST_FRESH = 32  # chunks; those of a crowded street take some megabytes each


class StoppedError(AutolabelError):
    """Not started, because this process was asked to stop."""


class DeviceTurn:
    """One chunk's turn with the device, entered by what uses the device for it.

    Args:
        device: held by the chunk whose turn it is.

    Attributes:
        waited_s: seconds until the turn came, which are none of the chunk's.

    """

    def __init__(self, device: threading.Semaphore) -> None:
        self._device, self.waited_s = device, 0.0

    def __enter__(self) -> None:
        started = time.perf_counter()
        self._device.acquire()
        self.waited_s += time.perf_counter() - started

    def __exit__(self, *_: object) -> None:
        self._device.release()


class RunContext:
    """Loaded models, opened boxes, the device, who listens, and whether to stop.

    Attributes:
        progress: hears how far the run has come.
        stop: set when a shard is to finish the blocks at hand and start nothing more.
        segmenters, detectors: models that were loaded.
        device: held by the chunk that is segmented: a second one would only take memory from the
            first. Of many cores two chunks make better use than one.
        labeling: entered by a block that is detected and segmented. Two may (or one more than
            there are `processes`), so that one reads and writes beside the other's turn. With
            more, all would finish at once and the device would wait for the next download.
        processes: those that detect and segment for this one; None: it does so itself.
        fresh: chunks that this process has just labeled, by stem: it does not read them back.
        loader: processes that make tracks and load labels into FiftyOne; None: this one does.

    It stays in its process: a job that goes to another one finds a new context there.

    """

    def __init__(self) -> None:
        self.progress, self.stop = Progress(), threading.Event()
        self.segmenters, self.detectors = Segmenters(), Detectors()
        self._kept = KeptFrames(forgotten_s=math.inf)
        many_cores = usable_cores() >= MANY_CORES and not cuda_devices()
        self.device = threading.Semaphore(2 if many_cores else 1)
        self.labeling = threading.Semaphore(2)
        self.certificate: dict[str, Any] | None = None  # of the model, once it is known
        self.processes: DeviceProcesses | None = None
        self.loader: DeviceProcesses | None = None
        self.fresh: dict[str, StoredChunk] = {}
        self._opening, self._keeping = threading.Lock(), threading.Lock()
        self._imported: dict[tuple[str, str], ImportedBoxes] = {}
        self._lost: DeviceLostError | None = None

    def __reduce__(self) -> tuple[type[RunContext], tuple[()]]:
        return RunContext, ()

    def keep_fresh(self, stem: str, stored: StoredChunk) -> None:
        """Keep labels that were just written for tracks and loading, in place of the oldest."""
        labeled = [as_stored(frame) for frame in stored.labeled]
        with self._keeping:
            self.fresh[stem] = replace(stored, labeled=labeled)
            for oldest in list(self.fresh)[:-MOST_FRESH]:
                del self.fresh[oldest]

    def kept_frames(self) -> KeptFrames:
        """Return what keeps pictures from the detector to the mask model: the GPU's, else ours."""
        from sam2_core.backends.gpu import opened_gpu

        gpu = opened_gpu()
        return gpu.kept if gpu else self._kept

    def imported(self, boxes_uri: str, names_uri: str = "", version: str = "") -> ImportedBoxes:
        """Return imported boxes, opened the first time.

        Raises:
            AutolabelError: they are unusable, or not those of the version any more.

        """
        from tasks.pipeline.open_boxes import open_boxes

        key = (boxes_uri, names_uri)
        with self._opening:
            boxes = self._imported.pop(key, None) or open_boxes(boxes_uri, names_uri)
            if version and boxes.version != version:
                raise AutolabelError(f"{boxes_uri} changed while it was being read: run again")
            self._imported[key] = boxes
            return boxes

    @property
    def lost(self) -> DeviceLostError | None:
        """Why the device is lost to this run; None while it works."""
        return self._lost or DEVICE_OWNER.lost

    def lose(self, error: DeviceLostError) -> None:
        """Note that a step has found the device lost, its new processes included."""
        self._lost = self._lost or error

    def check(self) -> None:
        """Call before starting work.

        Raises:
            DeviceLostError: the device is lost: what is fetched now would be fetched in vain.
            StoppedError: the run was asked to stop.

        """
        if self.lost is not None:
            raise self.lost
        if self.stop.is_set():
            raise StoppedError("not started: this worker was asked to stop")


@dataclass(frozen=True)
class Job:
    """What every step of a run needs to know.

    Attributes:
        params: what was asked for.
        stamp: what decides the labels, and so the keys.
        model: the model, resolved but not loaded.
        boxes_version: `ImportedBoxes.version` of those that the run started with.
        counts_attempts: whether sequences that kill this process again and again are given up.
        context: what the run works with in its process.

    """

    params: LabelParams
    stamp: RunStamp
    model: ModelChoice
    boxes_version: str = ""
    counts_attempts: bool = False
    context: RunContext = field(default_factory=RunContext, repr=False, compare=False)

    @property
    def rules(self) -> MaskRules:
        """What is done to masks after the model."""
        return self.params.mask_rules

    def imported(self) -> ImportedBoxes:
        """Return the imported boxes, opened the first time; raises as `RunContext.imported`."""
        boxes, names = self.params.boxes or "", self.params.box_names or ""
        return self.context.imported(boxes, names, self.boxes_version)

    def load_detector(self) -> AnyDetector:
        """Return the detector, loaded the first time; raises as `Detectors.load`."""
        load, backend = self.context.detectors.load, self.model.backend
        return load(self.params.detector_name, stamp=self.stamp.detector, backend=backend)
