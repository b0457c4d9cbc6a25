"""What a person chooses: settings, methods and tasks. Imports neither JAX nor Gymnasium."""
