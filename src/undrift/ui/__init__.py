"""The live page of `undrift ui`: runs of a folder, their curves while they train; stop, resume, start.

history     the rows of a run, read as they are written
curves      what is drawn of them: few points, and only what is new
holders     which process trains a run
catalogue   all runs of a folder, and what has changed since
form, jobs  what the page may start, and the processes it started
access      who may read and who may write
app, serve  the routes, and the server
static/     the page
"""
