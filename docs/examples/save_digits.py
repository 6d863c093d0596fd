from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

digits = load_digits()
for number, (pixels, label) in enumerate(zip(digits.images, digits.target, strict=True)):
    folder = Path("digits", "train" if number % 5 else "test", str(label))
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray((pixels * 15).astype(np.uint8)).save(folder / f"{number:04}.png")
