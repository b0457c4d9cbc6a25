"""From csv files to figures and the report page. Imports neither JAX nor Gymnasium."""
