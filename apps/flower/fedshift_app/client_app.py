"""Runs at a site: passes each request to the site's worker, or handles it here."""

from fedshift.deploy.site_file import FileDescription
from fedshift.federation.flower import client_app

app = client_app(FileDescription())
