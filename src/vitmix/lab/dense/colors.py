"""A color for each class, the same in every image of a page."""

import colorsys

import numpy as np

# Tol's bright scheme, which people with color vision deficiency can distinguish.
BRIGHT = ((68, 119, 170), (238, 102, 119), (34, 136, 51), (204, 187, 68), (102, 204, 238), (170, 51, 119))
GOLDEN = 0.618033988749895  # turns of the hue wheel: neighbors differ, and no hue comes twice


def class_color(number: int) -> tuple[int, int, int]:
    """RGB of a class."""
    if number < len(BRIGHT):
        return BRIGHT[number]
    red, green, blue = colorsys.hsv_to_rgb(number * GOLDEN % 1, 0.65, 0.9 if number % 2 else 0.7)
    return round(255 * red), round(255 * green), round(255 * blue)


def palette(classes: int) -> np.ndarray:
    """`(classes, 3)` uint8"""
    return np.array([class_color(number) for number in range(classes)], dtype=np.uint8)
