"""What runs beside the SuperLink: the rounds of the agreed task, to the record."""

from fedshift.deploy.files import Files
from fedshift.federation.flower import server_app

app = server_app(Files())
