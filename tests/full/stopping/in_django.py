"""The application under test in Django."""

import os

from django.core.wsgi import get_wsgi_application

os.environ["DJANGO_SETTINGS_MODULE"] = "tests.full.stopping.django_settings"
application = get_wsgi_application()
