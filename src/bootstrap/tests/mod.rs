//! The rooms of this room's tests: variables in and places out, and real meetings over real sockets.

mod meeting;
