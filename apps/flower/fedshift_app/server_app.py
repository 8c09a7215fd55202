"""Runs beside the SuperLink: the rounds of the agreed task, to the record."""

from fedshift.deploy.site_file import FileDescription
from fedshift.federation.flower import server_app

app = server_app(FileDescription())
