"""Shared by drivers on JAX: the nets of torch_side.py as functions, the loss, the accuracy."""

import jax
import jax.numpy as jnp
import numpy as np


def images(x):
    """Channels last, which is faster in XLA: [..., height, width, channels]."""
    return np.ascontiguousarray(np.moveaxis(x, -3, -1))


def parameters(given):
    """PyTorch's parameters in JAX's layouts: kernels [height, width, in, out], matrices [in, out]."""
    maps, out = None, []
    for p in given:
        if p.ndim == 4:
            maps, p = len(p), p.transpose(2, 3, 1, 0)
        elif p.ndim == 2 and maps:  # the first matrix after convolutions reads channels, height, width
            side = round((p.shape[1] / maps) ** 0.5)
            p = p.reshape(len(p), maps, side, side).transpose(2, 3, 1, 0).reshape(-1, len(p))
            maps = None
        elif p.ndim == 2:
            p = p.T
        out.append(jnp.asarray(np.ascontiguousarray(p)))
    return out


def _convolution(h, kernel, bias, padding=0):
    layout = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(h, kernel, (1, 1), [(padding, padding)] * 2, dimension_numbers=layout) + bias


def _pool(h):
    """Max pooling of 2×2; `reduce_window` computes the same, but its derivative is slower."""
    n, height, width, maps = h.shape
    return h.reshape(n, height // 2, 2, width // 2, 2, maps).max((2, 4))


def _dropout(h, rate, key):
    if key is None:
        return h
    return jnp.where(jax.random.bernoulli(key, 1 - rate, h.shape), h / (1 - rate), 0)


def scores(net, p, x, key=None):
    """Logits; with a key, the net is in training mode and uses dropout."""
    relu = jax.nn.relu
    if net == "softmax":
        return x.reshape(len(x), -1) @ p[0] + p[1]
    if net == "cnn-pfl":
        first, second = (None, None) if key is None else jax.random.split(key)
        h = relu(_convolution(relu(_convolution(x, *p[0:2])), *p[2:4]))
        h = _dropout(_pool(h), 0.25, first).reshape(len(x), -1)
        return _dropout(relu(h @ p[4] + p[5]), 0.5, second) @ p[6] + p[7]
    padding = 2 if x.shape[1] < 32 else 0
    h = _pool(relu(_convolution(x, *p[0:2], padding)))
    h = _pool(relu(_convolution(h, *p[2:4]))).reshape(len(x), -1)
    return relu(relu(h @ p[4] + p[5]) @ p[6] + p[7]) @ p[8] + p[9]


def loss(net, p, x, y, key):
    logs = jax.nn.log_softmax(scores(net, p, x, key).astype(jnp.float32))
    return -jnp.take_along_axis(logs, y[:, None], 1).mean()


def accuracy(net, p, test):
    if test is None:
        return None
    x, y = images(test[0]), test[1]
    predict = jax.jit(lambda p, x: scores(net, p, x).argmax(1))
    right = sum(int((predict(p, x[i : i + 1000]) == y[i : i + 1000]).sum()) for i in range(0, len(x), 1000))
    return right / len(y)
