"""Make a small MobileNet, run it on the CPU and through a delegate, and save the outputs.

This script runs under emulation with TensorFlow Lite's Python package, without npurt.
The network is MobileNet v1 (arXiv 1704.04861, table 1) without its classifier, for images of 160 x
160, in uint8 with one scale a tensor, which is what Mesa computes.  Its weights are random, from a
fixed seed.  The outputs of all layers are outputs of the graph, so that each layer can be checked
from the output of the layer before.
"""

import sys

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as tfl
from ai_edge_litert.interpreter import Interpreter, load_delegate

SIZE, CHANNELS = 160, 3
SCALE = 6 / 255  # scale of every layer's output after ReLU6; the zero point is 0
# (kind, kernel size, stride, output channels; 0: as many as input channels)
LAYERS = [("conv", 3, 2, 32)] + [
    layer
    for stride, width in zip(
        (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1),
        (64, 128, 128, 256, 256, *[512] * 6, 1024, 1024),
        strict=True,
    )
    for layer in (("depthwise", 3, stride, 0), ("conv", 1, 1, width))
]


def quantised(scale, zero):
    made = tfl.QuantizationParametersT()
    made.scale, made.zeroPoint = [scale], [zero]
    return made


class Graph:
    """Builds the only subgraph of a model."""

    def __init__(self):
        self.model, self.graph = tfl.ModelT(), tfl.SubGraphT()
        self.model.version, self.model.subgraphs = 3, [self.graph]
        self.model.buffers = [tfl.BufferT()]
        self.model.operatorCodes = []
        for code in (tfl.BuiltinOperator.CONV_2D, tfl.BuiltinOperator.DEPTHWISE_CONV_2D):
            made = tfl.OperatorCodeT()
            made.builtinCode = made.deprecatedBuiltinCode = code
            made.version = 1
            self.model.operatorCodes.append(made)
        self.graph.tensors, self.graph.operators = [], []
        self.graph.inputs, self.graph.outputs = [], []

    def tensor(self, name, shape, scale, zero, data=None, kind=tfl.TensorType.UINT8):
        made = tfl.TensorT()
        made.name, made.shape, made.type, made.buffer = name, list(shape), kind, 0
        made.quantization = quantised(scale, zero)
        if data is not None:
            buffer = tfl.BufferT()
            buffer.data = np.frombuffer(data.tobytes(), np.uint8)
            made.buffer = len(self.model.buffers)
            self.model.buffers.append(buffer)
        self.graph.tensors.append(made)
        return len(self.graph.tensors) - 1

    def convolution(self, kind, stride, inputs, output):
        depthwise = kind == "depthwise"
        options = tfl.DepthwiseConv2DOptionsT() if depthwise else tfl.Conv2DOptionsT()
        options.strideW = options.strideH = stride
        options.dilationWFactor = options.dilationHFactor = 1
        options.padding = tfl.Padding.SAME
        options.fusedActivationFunction = tfl.ActivationFunctionType.RELU6
        made = tfl.OperatorT()
        made.opcodeIndex = int(depthwise)
        made.builtinOptionsType = (
            tfl.BuiltinOptions.DepthwiseConv2DOptions
            if depthwise
            else tfl.BuiltinOptions.Conv2DOptions
        )
        if depthwise:
            options.depthMultiplier = 1
        made.builtinOptions, made.inputs, made.outputs = options, inputs, [output]
        self.graph.operators.append(made)

    def bytes(self):
        builder = flatbuffers.Builder(1 << 20)
        builder.Finish(self.model.Pack(builder), b"TFL3")
        return bytes(builder.Output())


def mobilenet(rng):
    """Return the model's bytes, and its arrays by name."""
    made, arrays = Graph(), {}
    size, channels, scale, zero = SIZE, CHANNELS, 1 / 128, 128
    last = made.tensor("input", (1, size, size, channels), scale, zero)
    made.graph.inputs = [last]
    for i, (kind, kernel, stride, outputs) in enumerate(LAYERS):
        width = outputs or channels
        fan_in = kernel * kernel * (1 if kind == "depthwise" else channels)
        shape = (width, kernel, kernel, channels)
        if kind == "depthwise":
            shape = (1, kernel, kernel, channels)
        # 74: standard deviation of uniform bytes; the outputs of all layers then spread over 0 to 6
        weight_zero = int(rng.integers(126, 131))
        weight_scale = (1 if i else 4) / (74 * fan_in**0.5)
        weights = rng.integers(0, 256, shape).astype(np.uint8)
        biases = (rng.normal(1, 1, width) / (scale * weight_scale)).astype(np.int32)
        size = -(-size // stride)
        names = f"weights{i}", f"biases{i}", f"output{i}"
        inputs = [
            last,
            made.tensor(names[0], shape, weight_scale, weight_zero, weights),
            made.tensor(names[1], (width,), scale * weight_scale, 0, biases, tfl.TensorType.INT32),
        ]
        output = made.tensor(names[2], (1, size, size, width), SCALE, 0)
        made.convolution(kind, stride, inputs, output)
        made.graph.outputs.append(output)
        arrays |= {names[0]: weights, names[1]: biases}
        arrays[f"layer{i}"] = np.array([kind == "depthwise", stride, zero, weight_zero])
        arrays[f"scale{i}"] = np.float32(scale) * np.float64(np.float32(weight_scale))
        last, channels, scale, zero = output, width, SCALE, 0
    return made.bytes(), arrays


def main(delegate, out):
    rng = np.random.default_rng(0)
    model, arrays = mobilenet(rng)
    image = rng.integers(0, 256, (1, SIZE, SIZE, CHANNELS)).astype(np.uint8)
    arrays |= {"input": image, "model": np.frombuffer(model, np.uint8)}
    for where, delegates in ("cpu", []), ("npu", [load_delegate(delegate)]):
        interpreter = Interpreter(
            model_content=model, experimental_delegates=delegates, num_threads=1
        )
        interpreter.allocate_tensors()
        interpreter.set_tensor(interpreter.get_input_details()[0]["index"], image)
        interpreter.invoke()
        for detail in interpreter.get_output_details():
            arrays[f"{where}_{detail['name']}"] = interpreter.get_tensor(detail["index"])
    np.savez(out, **arrays)


if __name__ == "__main__":
    main(*sys.argv[1:])
