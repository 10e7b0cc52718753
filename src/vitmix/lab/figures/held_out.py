"""Pictures of a run's own data."""

import numpy as np

from vitmix.lab.data.images import BrokenImage
from vitmix.lab.evaluation.subject import Subject
from vitmix.lab.show.pictures import Picture


def held_out(subject: Subject, count: int) -> list[Picture]:
    """An even number of readable images that a run was evaluated on, the same for every run on the same data.

    There are as many classes among them as can be, and neighbors, which make pairs, are of two if there are two.
    """
    images = subject.evaluation_images()
    classes = np.unique(images.labels)
    wanted = classes[np.arange(count) * len(classes) // count].reshape(2, -1).T.ravel()
    found: list[Picture] = []
    for number, label in enumerate(wanted):
        rows = np.flatnonzero(images.labels == label)
        for index in np.roll(rows, -number):  # another image where classes repeat
            try:
                found.append(Picture(images[int(index)][0], images.classes[label]))
                break
            except BrokenImage:
                continue
    if len(found) < count:
        raise ValueError(f"fewer than {count} of the classes of {images.description} have a readable image")
    return found
