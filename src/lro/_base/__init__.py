"""What everything else stands on: values, codes, errors, checks of arguments."""
