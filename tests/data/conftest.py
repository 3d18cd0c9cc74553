from hypothesis import settings

# The time an example takes says more about what else the machine does than about the code.
settings.register_profile("deepnmt", deadline=None)
settings.load_profile("deepnmt")
