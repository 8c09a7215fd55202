"""What runs at a site: hands each question to the site's warm worker, or answers it here."""

from fedshift.deploy.files import Files
from fedshift.federation.flower import client_app

app = client_app(Files())
