"""The only code below training that knows Gymnasium."""
