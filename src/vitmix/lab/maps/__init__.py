"""Activation maps: where a teacher sees each label in the training images, for TokenMix's labels and token labeling.

`teachers` compute maps, `making` fills a folder with those of a data set, `stored` reads the folder. The loaders of
`vitmix.lab.data` crop and flip the maps with their images.
"""
