"""Run sparkwright command lines on other machines: over ssh, their files through the store.

Start reading at `Cluster.run`. A task is the words of a command line, such as ``sparkwright task run``, and
files of the store that it reads below its working folder. A worker lays the files out, runs the command in a
process of its own, and returns the JSON document that it printed, with the files that it left in ``out``.
So this package knows nothing of what is compiled or verified, and a machine that is lost costs the
tasks that it was running.

Only that a task is to be done, and its document, goes over the connection of ssh. Files go through the store
that the machines share, by their digests, and are verified when they come in.
"""
