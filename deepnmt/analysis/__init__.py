"""Analysis of a model: size, weights over depth, gradients, speed."""
