"""Train a small convolutional network with Keras's fit(), on generated images."""

import os

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy as np

images = np.random.default_rng(0).random((2048, 28, 28, 1), dtype="float32")
labels = (images.mean((1, 2, 3)) > 0.5).astype("int64")
model = keras.Sequential(
    [
        keras.layers.Conv2D(16, 3, activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Conv2D(32, 3, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(10),
    ]
)
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
model.fit(images, labels, batch_size=32, epochs=100_000)
