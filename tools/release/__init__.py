"""What a release must pass, as tests of the files that would be published."""
