"""Looking into a model: its size, its weights over depth, its gradients, its speed."""
