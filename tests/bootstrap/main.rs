//! Starting up: what the environment says, real meetings over real sockets, meetings that fail, and real processes under
//! real launchers.

mod environment;
mod failures;
mod meeting;
mod processes;
