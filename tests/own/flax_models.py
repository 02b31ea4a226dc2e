import flax.linen as nn


class Block(nn.Module):
    width: int
    stride: int = 1
    dtype: object = None

    @nn.compact
    def __call__(self, x, train):
        y = nn.Conv(self.width, (3, 3), (self.stride,) * 2, use_bias=False, dtype=self.dtype)(x)
        y = nn.relu(nn.BatchNorm(use_running_average=not train, momentum=0.9, dtype=self.dtype)(y))
        y = nn.Conv(self.width, (3, 3), use_bias=False, dtype=self.dtype)(y)
        y = nn.BatchNorm(use_running_average=not train, momentum=0.9, dtype=self.dtype)(y)
        if x.shape != y.shape:
            x = nn.Conv(self.width, (1, 1), (self.stride,) * 2, dtype=self.dtype)(x)
        g = self.param("gamma", nn.initializers.ones, (self.width,))
        return nn.relu(x + y * g)


class Net(nn.Module):
    classes: int = 5
    dtype: object = None

    @nn.compact
    def __call__(self, x, train: bool):
        x = nn.Conv(8, (3, 3), padding=((1, 1), (1, 1)), dtype=self.dtype)(x)
        x = nn.max_pool(nn.relu(x), (3, 3), (2, 2), "SAME")
        x = Block(8, dtype=self.dtype)(x, train)
        x = Block(12, 2, dtype=self.dtype)(x, train)
        x = nn.ConvTranspose(6, (3, 3), (2, 2), dtype=self.dtype)(x)
        x = nn.gelu(nn.GroupNorm(2, dtype=self.dtype)(x))
        x = nn.avg_pool(x, (2, 2), (2, 2))
        x = nn.Dropout(0.5, deterministic=not train)(x)
        x = x.transpose((0, 3, 1, 2)).reshape((x.shape[0], -1))
        x = nn.Dense(16, dtype=self.dtype)(x)
        x = nn.LayerNorm(dtype=self.dtype)(x)
        return nn.Dense(self.classes, dtype=self.dtype)(x)


def net(classes=5, dtype=None):
    return Net(classes, dtype)
