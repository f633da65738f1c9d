//! From a description of the world to a communicator.
