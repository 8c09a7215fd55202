"""Answers with the client's name after some seconds of work."""

import time

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.query()
def answer(message: Message, context: Context) -> Message:
    """The name in the node's configuration and the round that was asked for."""
    time.sleep(float(context.run_config["work"]))
    facts = ConfigRecord(
        {
            "client": str(context.node_config["client"]),
            "round": message.content["ask"]["round"],
        }
    )
    return Message(RecordDict({"answer": facts}), reply_to=message)
