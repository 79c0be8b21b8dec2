"""moto's S3 server as a program: ``python s3_process.py PORT``.

One request at a time: moto checks a condition and stores the object in two steps, and with threads two
writers could both pass the check, which no real store allows.
"""

import sys

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple

if __name__ == "__main__":
    run_simple("127.0.0.1", int(sys.argv[1]), DomainDispatcherApplication(create_backend_app), threaded=False)
