"""Reads ``.qubgpu`` token files, versions 1 and 2, as a data set for PyTorch or numpy.

:class:`QubGPUDataset` is all that most programs need. The formats are described in ``src/data/token_file`` of
sparktune; this package only reads them. It needs numpy; torch is optional.
"""

from .dataset import IGNORED, QubGPUDataset
from .errors import DamagedFile, Defect, NotATokenFile, QubGPUError

__all__ = ["IGNORED", "DamagedFile", "Defect", "NotATokenFile", "QubGPUDataset", "QubGPUError"]
__version__ = "0.1.0"
