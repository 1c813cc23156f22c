"""Export of a trained policy: an ONNX file that acts as the policy does, and a loader that needs no levada.

levada.export("runs/first", "policy.onnx")
"""

from levada.onnx.write import Exported, ExportError, export

__all__ = ["ExportError", "Exported", "export"]
