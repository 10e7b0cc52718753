"""Transfer to dense tasks: a trained backbone, a head on it, images with masks or boxes; the loop is that of training.

`config` has the settings, `backbone` answers "which model?", `task` is what a task must provide, `loader` reads images
with their targets, `training` trains. Segmentation and detection are one package each, listed in `tasks.TASKS`.
"""
