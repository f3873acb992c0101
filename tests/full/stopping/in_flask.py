"""The application of these tests as routes of Flask."""

import flask

from lro.integrations.flask import Operations
from tests.full.stopping.app import service

app = flask.Flask(__name__)
Operations(service, caller=lambda: None, starts=True).init_app(app)
