"""Figures and the report page, made from the files of runs. Imports neither JAX nor Gymnasium."""
