//! Starting up: what the environment says, real meetings over real sockets, and meetings that fail.

mod environment;
mod meeting;
