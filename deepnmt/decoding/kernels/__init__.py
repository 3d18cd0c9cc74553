"""One step of the decoder and of the beam search as few GPU kernels; the plain twins are the model and `Beams`."""
