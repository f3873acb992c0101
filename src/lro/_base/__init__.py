"""The foundations of all other packages: values, codes, errors, checks of arguments."""
