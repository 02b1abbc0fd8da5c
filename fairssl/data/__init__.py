"""From files to batches: image files, decoded images, splits on a device, sampling, augmentation."""
